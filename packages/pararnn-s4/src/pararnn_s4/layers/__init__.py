"""S4 and S4D as layers, and a model stacked of them."""
