"""Cauchy and Vandermonde products, and the backends that compute them."""
