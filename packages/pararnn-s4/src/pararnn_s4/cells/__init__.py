"""S4D and S4 as cells of pararnn."""
