"""Driving a learner over data that streams by: sources of steps, the driver, its checkpoints, and steps captured as a CUDA graph."""
