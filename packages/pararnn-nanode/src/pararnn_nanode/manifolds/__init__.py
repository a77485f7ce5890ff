"""Weights on the orthogonal group and the Stiefel manifold."""
