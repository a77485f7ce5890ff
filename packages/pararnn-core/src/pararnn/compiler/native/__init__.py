"""Steps compiled to C by the system's compiler, for the CPU."""
