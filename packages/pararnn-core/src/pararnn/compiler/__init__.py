"""The cell compiler: kernels made from the `step` that a user wrote in PyTorch.

A channelwise step is traced, with its vector-Jacobian product, into a short list of pointwise operations. Engines print that list in their own
language and put loops around it: `gpu` in Triton, `native` in C. The engines are backends of `solve` like any other.

Where is what:

- What everybody speaks of. `program`: a traced step; `primitives`: the operations in it; `engine`: what an engine has to be, `engines`: which there
  are; `reference`: programs run by PyTorch, the oracle of engines.
- From a step to a program. `tracing` does it; `operands` and `surroundings` make the tensors and the quiet that the step runs in; `recording` writes
  down each operation, `guarding` refuses what asks for numbers; `vocabulary` sorts operations by name, `lowering` and `activations` say what they are
  in primitives, `numbers`, `standing` and `storages` what is known of a tensor; `wide` follows tensors with several numbers a channel, whose places
  have `labels`; `simplify` shortens the list. A missing operation: `lowering`, else `primitives` and the printers of the engines.
- Which program a step has. `catalogue` remembers by `identity`, what the step sees besides tensors: `reading` finds the names, `freezing` makes
  facts of the values, and `watching` looks whether they still hold; `places` are the tensors that it reads by name, fetched at each call.
- From a program to a result. `posed`: the step in a request; `serving`: obstacles, the error, the trial of an engine; `solving`: gradients and the
  choice of a plan, `repeating`: solves like one before; `columns`: operands side by side in one tensor; `record`: how it went, read when asked for;
  `ops`: the same in a graph of `torch.compile`; `stepping`: one step, for decoding.
- What users are told. `explaining`: whether a cell compiles and why not, which `explain` and `pararnn compile` print; `wording`: operations in words.
- `cache`: files that are kept on disk.
- `gpu` and `native`: see their docstrings. In both `backend` is what the plugin registers, `engine` the entrance, `planning` chooses, `printer`
  prints expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from pararnn.compiler.explaining import Explanation


def explain(cell: Any, x: Tensor) -> Explanation:
    """Whether the step of `cell`, as it computes over inputs `x` `(batch, time, input)`, is made into kernels, and why not; to be printed.

    `cell` may also be a layer around one cell. The step is traced; nothing is compiled or solved.

    Raises:
        CellError: there is no cell, or it does not follow the protocol.
        ShapeError, DTypeError: `x` does not fit the cell.
    """
    # Not above: importing this package, which importing any module of it does, costs no other imports.
    from pararnn.compiler.explaining import explained

    return explained(cell, x)
