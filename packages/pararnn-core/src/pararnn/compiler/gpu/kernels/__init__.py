"""Kernels that do not depend on a program."""
