"""Right-hand sides of the differential equation."""
