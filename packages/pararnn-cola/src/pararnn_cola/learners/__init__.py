"""Learning rules, all behind one streaming interface: `init`, `step`, `reset`, `apply`, `state_dict`."""
