"""Recurrent layers that can be learned online: what a rule asks of them, and the families that come with this package."""
