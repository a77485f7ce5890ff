"""How parameters are stored, and what is computed from them."""
