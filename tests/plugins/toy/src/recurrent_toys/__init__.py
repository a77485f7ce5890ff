"""A third party's plugin for pararnn: one cell and one structure."""
