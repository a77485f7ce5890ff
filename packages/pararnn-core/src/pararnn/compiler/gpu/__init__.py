"""Kernels for a GPU, printed in Triton from programs: see `pararnn.compiler.gpu.engine`."""
