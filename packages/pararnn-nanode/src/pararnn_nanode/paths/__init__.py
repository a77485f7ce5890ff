"""Weights as functions of time."""
