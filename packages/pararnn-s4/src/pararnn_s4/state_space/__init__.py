"""State-space models as modules: kernel, state and step."""
