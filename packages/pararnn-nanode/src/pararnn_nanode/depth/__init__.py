"""The steps of an equation solved all at once: iterations that are parallel over depth, with exact gradients."""
