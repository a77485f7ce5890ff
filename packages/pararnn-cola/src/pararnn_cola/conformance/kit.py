"""Running all checks of a rule, or of a layer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.conformance import ConformanceReport
from pararnn.conformance.report import CheckResult, run_checks
from pararnn_cola.conformance import batches, layer_formulas, layer_maps, layer_steps, learning, ownership, streams
from pararnn_cola.conformance.samples import Maker, small_network
from pararnn_cola.layers.base import Layer
from pararnn_cola.learners.base import Learner
from pararnn_cola.network import Network

LearnerCheck: TypeAlias = Callable[[Maker], str | None]
LayerCheck: TypeAlias = Callable[[Layer, Tensor], str | None]

LEARNER_CHECKS: tuple[LearnerCheck, ...] = (
    learning.check_interface,
    learning.check_outputs_and_losses,
    learning.check_readout_gradient,
    learning.check_every_parameter_learns,
    learning.check_gradients_add_up,
    learning.check_target_free_steps,
    batches.check_batch_is_a_mean,
    batches.check_single_sample,
    batches.check_number_as_weight,
    batches.check_cross_entropy,
    batches.check_clip,
    streams.check_chunks,
    streams.check_resume,
    streams.check_copies,
    streams.check_row_reset,
    streams.check_nothing_crosses_a_reset,
    streams.check_padding,
    streams.check_rows_without_weight,
    ownership.check_no_graph,
    ownership.check_flat_memory,
    ownership.check_arguments_stay,
    ownership.check_results_are_given_away,
    ownership.check_failed_steps_change_nothing,
)

LAYER_CHECKS: tuple[LayerCheck, ...] = (
    layer_steps.check_states,
    layer_steps.check_step_writes_nothing,
    layer_steps.check_rows_stay_apart,
    layer_steps.check_gradients_reach_every_weight,
    layer_formulas.check_observe,
    layer_formulas.check_slope,
    layer_formulas.check_signal_to_input,
    layer_formulas.check_signal_to_previous,
    layer_formulas.check_add_gradients,
    layer_maps.check_eligible,
    layer_maps.check_own_path,
    layer_formulas.check_pool_and_spread,
    layer_maps.check_operator_norm,
)


def learner_checks() -> dict[str, LearnerCheck]:
    """Every check of a rule by name: `check(maker)` raises `ConformanceError`, or returns why there is nothing to check, or None."""
    return {check.__name__.removeprefix("check_"): check for check in LEARNER_CHECKS}


def layer_checks() -> dict[str, LayerCheck]:
    """Every check of a layer by name: `check(layer, u)` raises `ConformanceError`, or returns why there is nothing to check, or None.

    `layer` has its weights in float64 and `u` is `(batch, *input)`, at least two samples.
    """
    return {check.__name__.removeprefix("check_"): check for check in LAYER_CHECKS}


def check_learner(
    make_learner: Callable[..., Learner],
    make_network: Callable[[], Network] = small_network,
    make_input: Callable[[int, int], Tensor] | None = None,
    *,
    seed: int = 0,
    on_result: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Run every check of a rule, usually given by its class alone.

    Args:
        make_learner: `(network, update=..., lr=...) -> Learner`, the class or a function.
        make_network: `() -> Network`, one that the rule covers, in float64; two inputs a sample unless there is `make_input`.
        make_input: `(time, batch) -> inputs (time, batch, *input)`, random, in float64.

    Raises:
        ConfigError: networks or inputs are not of this form.
        ConformanceError: a check failed; the message names each that did, with the fault and what to do, and `data["report"]` is the report.
    """
    make = Maker(make_learner, make_network, make_input)
    make.check()
    checks = {name: functools.partial(check, make) for name, check in learner_checks().items()}
    name = getattr(make_learner, "__name__", type(make_learner).__name__)
    return run_checks(f"learner {name}", checks, seed=seed, on_result=on_result).raise_for_failures()


def check_layer(layer: Layer, u: Tensor, *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None) -> ConformanceReport:
    """Run every check of a layer on inputs `u` `(batch, *input)`, each on a copy in float64; `layer` itself stays as it is.

    Raises:
        ConformanceError: a check failed; the message names each that did, with the fault and what to do, and `data["report"]` is the report.
    """

    def bound(check: LayerCheck) -> str | None:
        return check(copy.deepcopy(layer).to(torch.float64), u.detach().to(torch.float64))

    checks = {name: functools.partial(bound, check) for name, check in layer_checks().items()}
    return run_checks(f"layer {type(layer).__name__}", checks, seed=seed, on_result=on_result).raise_for_failures()
