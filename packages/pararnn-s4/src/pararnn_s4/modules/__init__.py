"""Small modules that layers are assembled from."""
