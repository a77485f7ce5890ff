"""Calls that must not wait for the GPU."""

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def nothing_waits():
    """Whatever makes the host wait for the device raises RuntimeError in here."""
    with warnings.catch_warnings():
        # Torch says with a warning that it may overlook some.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
