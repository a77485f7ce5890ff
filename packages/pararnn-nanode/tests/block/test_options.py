"""Options that cannot work are refused when a block is made, with those that do; what it warns of."""

import warnings

import pytest
import torch

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_nanode import (
    NANODE,
    BracketFlow,
    BucketPath,
    CallablePath,
    ConstantPath,
    DenseField,
    GivensWalk,
    HyperPath,
    NonFiniteStateError,
    OrthogonalPath,
    PathWarning,
    PolyPath,
    TrigPath,
)


def field(path=None):
    return DenseField(4, ConstantPath((4, 4)) if path is None else path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "leapfrog"}, "method must be one of .*euler.*rk4.*got 'leapfrog'.*torchdiffeq"),
        ({"gradient": "magic"}, "gradient must be one of backprop, checkpoint, reversible, adjoint, got 'magic'"),
        ({"gradient": "reversible"}, "alf or reversible_heun, not 'euler'; gradient='checkpoint'"),
        ({"gradient": "reversible", "method": "dopri5"}, "'dopri5' has gradients backprop, checkpoint, adjoint, not 'reversible'"),
        ({"backend": "jax"}, "backend must be one of native, torchdiffeq, got 'jax'"),
        ({"parallel": "yes"}, "parallel must be None or one of auto, newton, picard, windowed, got 'yes'"),
        ({"parallel": "newton", "method": "dopri5"}, "fixed-step method"),
        ({"parallel": "picard", "method": "alf"}, "takes euler, midpoint.*'alf' carries more than the state"),
        ({"parallel": "picard", "gradient": "checkpoint"}, "gradient of its own.*leave gradient='checkpoint' out"),
        ({"window": 4}, "window=4 .* parallel='windowed', got parallel=None"),
        ({"window": 0, "parallel": "windowed"}, "window must be a whole number of at least 1, got 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number of at least 1, got 2.5"),
        ({"span": (1.0, 1.0)}, r"two different finite times, got \(1.0, 1.0\)"),
        ({"span": (0.0, float("inf"))}, "finite"),
        ({"output": "first"}, "output must be 'last', 'path' or times, got 'first'"),
        ({"rtol": 1e-3}, "method='euler' has no option 'rtol'; it has none"),
        ({"method": "dopri5", "rtol": -1.0}, "rtol"),
        ({"method": "bosh3", "max_steps": 0}, "max_steps"),
        ({"method": "dopri5", "tolerance": 1e-3}, "method='dopri5' has no option 'tolerance'; it has atol.*max_steps.*rtol"),
    ],
    ids=lambda value: "-".join(f"{name}={choice}" for name, choice in value.items()) if isinstance(value, dict) else "",
)
def test_options_that_do_not_go_together_are_refused_with_those_that_do(options, words):
    with pytest.raises(ConfigError, match=words):
        NANODE(field(), **options)


def test_newton_is_refused_for_a_field_of_unknown_structure():
    with pytest.raises(ConfigError, match="CallableField has not; use 'picard'"):
        NANODE(lambda t, x: -x, parallel="newton")


@pytest.mark.parametrize("options", [{}, {"method": "dopri5"}, {"parallel": "picard"}], ids=str)
def test_a_state_of_other_channels_is_refused_with_its_shape(options):
    with pytest.raises(ShapeError, match=r"4 channels needs a state \(\.\.\., 4\), got \(3, 5\)"):
        NANODE(field(), **options)(torch.ones(3, 5))


def test_a_state_of_integers_is_refused():
    with pytest.raises(TypeError, match="floating"):
        NANODE(field())(torch.ones(3, 4, dtype=torch.int64))


def test_a_state_that_blows_up_is_refused_with_its_time_and_step():
    block = NANODE(lambda t, x: x**3, 10)
    with pytest.raises(NonFiniteStateError, match="step") as caught:
        block(torch.full((2, 4), 1e3))
    assert 0 < caught.value.data["step"] <= 10
    assert caught.value.data["time"] == pytest.approx(caught.value.data["step"] / 10)


@pytest.mark.parametrize(
    ("path", "method", "words"),
    [
        (lambda: TrigPath((4, 4), 5), "euler", "TrigPath of 11 matrices, of which 10 steps of euler can tell 10 apart"),
        (lambda: PolyPath((4, 4), 10), "euler", "PolyPath of 11 matrices, of which 10 steps of euler can tell 10 apart"),
        (lambda: BucketPath((4, 4), 12), "rk4", "BucketPath of 12 matrices, of which 10 steps of rk4 can tell 10 apart"),
    ],
    ids=["trigonometric", "polynomial", "bucket"],
)
def test_more_matrices_than_the_steps_can_tell_apart_are_warned_of_once(path, method, words):
    with pytest.warns(PathWarning, match=words) as caught:
        block = NANODE(field(path()), method=method)
    assert len(caught) == 1
    block(torch.ones(1, 4))


@pytest.mark.parametrize(
    ("path", "method"),
    [(TrigPath((4, 4), 4), "euler"), (TrigPath((4, 4), 5), "rk4"), (BucketPath((4, 4), 10), "euler"), (TrigPath((4, 4), 50), "dopri5")],
    ids=["fewer", "more-reads", "as-many", "adaptive"],
)
def test_no_more_matrices_than_can_be_told_apart_are_not_warned_of(path, method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NANODE(field(path), method=method)


def test_a_path_made_for_a_shorter_span_is_warned_of():
    with pytest.warns(PathWarning, match=r"path is a BucketPath over \(0.0, 1.0\), .* over \(0.0, 4.0\); make the path with span="):
        NANODE(field(BucketPath((4, 4), 2)), span=(0.0, 4.0))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (lambda: OrthogonalPath(TrigPath((4, 4), 1)), "path.base is a TrigPath"),
        (lambda: GivensWalk(4, [(0, 1)]), "path is a GivensWalk"),
        (lambda: CallablePath((4, 4), torch.cos), "path is a CallablePath"),
        (lambda: HyperPath((4, 4), 2), "path is a HyperPath"),
        (lambda: BracketFlow(4), "path is a BracketFlow"),
    ],
    ids=["orthogonal", "givens", "function", "hyper", "bracket"],
)
@pytest.mark.parametrize("method", ["euler", "dopri5"])
def test_the_span_of_every_kind_of_path_is_looked_at(path, name, method):
    with pytest.warns(PathWarning, match=rf"{name} over \(0.0, 1.0\), .*span=\(0.0, 4.0\)") as caught:
        NANODE(field(path()), span=(0.0, 4.0), method=method)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("path", [lambda: ConstantPath((4, 4)), lambda: OrthogonalPath(ConstantPath((4, 4)))], ids=["constant", "orthogonal"])
def test_weights_that_do_not_move_have_no_span_to_leave(path, state):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NANODE(field(path()), span=(0.0, 4.0))(state, 5.0)


@pytest.mark.parametrize("method", ["euler", "dopri5"])
@pytest.mark.parametrize(("t", "words"), [(3.0, "after 1"), ([0.5, 1.5], "after 1"), (-1.0, "before 0"), (torch.tensor(2.0), "after 1")], ids=str)
def test_times_outside_the_span_of_a_path_are_warned_of(t, words, method, state):
    block = NANODE(field(PolyPath((4, 4), 2)), method=method)
    with pytest.warns(PathWarning, match=rf"path is a PolyPath over \(0.0, 1.0\) and is read {words}, .* span that holds all times") as caught:
        block.solve(state, t)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_times_inside_the_span_of_a_path_are_not_warned_of(state):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NANODE(field(PolyPath((4, 4), 2, span=(0.0, 3.0))))(state, [0.5, 2.0, 3.0])
        NANODE(field(PolyPath((4, 4), 2)))(state, 0.2)


@pytest.mark.parametrize("t", ["path", [0.1, "end"], {"t": 1.0}], ids=str)
def test_what_is_no_time_is_refused(t, state):
    with pytest.raises(InputError, match="'path' are values of output=" if t == "path" else "times are a number, or a list"):
        NANODE(field())(state, t)


def test_a_single_time_without_a_start_is_no_silent_identity(state):
    # torchdiffeq returns the state it was given, cut off from every gradient; a block starts at its span.
    weight = torch.tensor(1.0, requires_grad=True)
    answer = NANODE(lambda t, x: -weight * x, 10)(state, [1.0])
    torch.testing.assert_close(answer[0], state * 0.9**10)
    assert torch.autograd.grad(answer.sum(), weight)[0] != 0


def test_progress_is_told_of_every_step(state):
    told = []
    NANODE(field(), 5)(state, progress=lambda step, steps: told.append((step, steps)))
    assert told == [(k, 5) for k in range(1, 6)]


def test_progress_of_a_parallel_solve_is_refused(state):
    with pytest.raises(ConfigError, match="at once; leave progress out"):
        NANODE(field(), 5, parallel="picard")(state, progress=print)


def test_weights_of_another_dtype_are_refused_with_both():
    with pytest.raises(TypeError, match=r"float32.*float64.*\.to\(torch.float32\)"):
        NANODE(field())(torch.ones(3, 4, dtype=torch.float32))


def test_inputs_reach_the_field(state):
    block = NANODE(DenseField(4, ConstantPath((4, 4)), input=ConstantPath((4, 2)), activation=None), 3)
    u = torch.randn(3, 3, 2)
    x = state
    for held in u:
        x = x + (x @ block.field.path.weight.T + held @ block.field.input.weight.T) / 3
    torch.testing.assert_close(block(state, u=u), x)
    torch.testing.assert_close(block(state, u=u[0]), block(state, u=u[:1].expand(3, -1, -1)))


def test_missing_inputs_are_refused(state):
    with pytest.raises(InputError, match="no inputs u"):
        NANODE(DenseField(4, ConstantPath((4, 4)), input=ConstantPath((4, 2))))(state)


def test_a_block_says_what_it_is():
    text = repr(NANODE(field(), 20, method="dopri5", rtol=1e-3))
    assert "steps=20, span=(0.0, 1.0), method='dopri5', gradient='backprop', rtol=0.001" in text
