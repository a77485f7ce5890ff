"""Solving recurrences in parallel over time: multiple shooting, exact adjoints, and the walk they are held to.

This file imports nothing: the compiler builds upon some of these modules, and others upon the compiler.
"""
