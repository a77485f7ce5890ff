"""Checks that a plugin author runs on a cell, a structure or a backend; plain functions, usable without pytest."""
