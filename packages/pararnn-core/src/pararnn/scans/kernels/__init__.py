"""Device code of the scans, one family of kernels a file. Nothing here is imported before it is launched: it needs Triton."""
