"""Where the parameters of a state-space model start."""
