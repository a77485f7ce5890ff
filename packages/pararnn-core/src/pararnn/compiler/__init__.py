"""The cell compiler: kernels made from the `step` that a user wrote in PyTorch.

A channelwise step is traced, with its vector-Jacobian product, into a short list of pointwise operations (`tracing`, `program`, `simplify`). Engines
print that list in their own language and put loops around it: `gpu` in Triton, `native` in C. `solving` gives the result gradients and a record, and
the engines are backends of `solve` like any other.
"""
