"""Layers of other libraries, made from their state_dicts."""
