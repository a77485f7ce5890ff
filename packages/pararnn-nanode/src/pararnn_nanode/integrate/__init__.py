"""Methods that walk a differential equation through time, and how their gradients are had."""
