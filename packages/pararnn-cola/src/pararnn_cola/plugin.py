"""What pararnn-cola offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import CellSpec, CommandSpec, LearnerSpec


@hookimpl
def pararnn_register_cells() -> list[CellSpec]:
    """The layer that COLA was derived for, as a cell that can be solved in parallel."""
    return [
        CellSpec(
            name="RNNLayer",
            target="pararnn_cola.layers.rnn:RNNLayer",
            summary="the vanilla recurrent layer, which learns online and in parallel",
            example="pararnn_cola.layers.examples:rnn",
        ),
    ]


@hookimpl
def pararnn_register_learners() -> list[LearnerSpec]:
    """The rules, best known by the names of their papers."""
    return [
        LearnerSpec(name="BPTT", target="pararnn_cola.learners.bptt:BPTT", summary="backpropagation through the whole past, exact"),
        LearnerSpec(name="COLA", target="pararnn_cola.learners.cola:COLA", summary="a closed form of the exact signal near criticality"),
        LearnerSpec(name="EProp", target="pararnn_cola.learners.eprop:EProp", summary="traces of each unit's own memory, and the present error"),
        LearnerSpec(
            name="RTRL", target="pararnn_cola.learners.rtrl:RTRL", summary="the exact influence of all weights carried forward, for small networks"
        ),
        LearnerSpec(name="SnAp1", target="pararnn_cola.learners.snap1:SnAp1", summary="recurrent influence of each weight on its own unit only"),
        LearnerSpec(name="TBPTT", target="pararnn_cola.learners.tbptt:TBPTT", summary="backpropagation through the last k2 steps, every k1 steps"),
        LearnerSpec(name="TBPTT1", target="pararnn_cola.learners.tbptt1:TBPTT1", summary="backpropagation through one step, with a gain"),
        LearnerSpec(name="UORO", target="pararnn_cola.learners.uoro:UORO", summary="an unbiased rank-one estimate of the influence of all weights"),
    ]


@hookimpl
def pararnn_register_commands() -> list[CommandSpec]:
    """The comparison of rules."""
    return [
        CommandSpec(
            name="cola-study",
            target="pararnn_cola.study.command:cola_study",
            summary="compare online learning rules over tasks, rates and seeds",
        ),
    ]
