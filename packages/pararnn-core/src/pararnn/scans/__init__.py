"""Linear recurrences `h[t] = A[t] h[t-1] + b[t]` for any structure of `A`, in parallel over time.

What the scan must satisfy, on every backend:

- any length, 0 and 1 included, costs what its neighbours cost; `B = 0` works; any strides;
- real and complex, float64; half precision is carried in float32;
- gradients of `A`, `b` and the initial state, to any order; vmap; `torch.compile(fullgraph=True)`;
- packed sequences: nothing passes from one segment to the next, whatever its numbers, and empty segments are allowed;
- equal inputs give equal bits.
"""

from pararnn.scans.api import scan

__all__ = ["scan"]
