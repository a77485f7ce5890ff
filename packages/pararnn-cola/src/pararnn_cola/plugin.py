"""What pararnn-cola offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import LearnerSpec


@hookimpl
def pararnn_register_learners() -> list[LearnerSpec]:
    """The rules, best known by the names of their papers."""
    return [
        LearnerSpec(name="COLA", target="pararnn_cola.learners.cola:COLA", summary="a closed form of the exact signal near criticality"),
        LearnerSpec(name="TBPTT1", target="pararnn_cola.learners.tbptt1:TBPTT1", summary="backpropagation through one step, with a gain"),
    ]
