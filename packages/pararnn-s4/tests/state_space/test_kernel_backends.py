"""Kernels, responses and states by every backend of the products, against dense matrices and a loop; gradients against the definition."""

import os

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.selection import Request, select
from pararnn_s4 import DPLRSSM, DiagonalSSM

TIMES = {"dt_min": 0.02, "dt_max": 0.5, "dtype": torch.float64}
LENGTH = 33
MODELS = {
    "diagonal": lambda backend: DiagonalSSM(3, d_state=8, channels=2, init="diag-inv", backend=backend, **TIMES),
    "legs": lambda backend: DPLRSSM(3, d_state=8, channels=2, method="cauchy", backend=backend, **TIMES),
    "legt": lambda backend: DPLRSSM(3, d_state=8, channels=2, init="legt", rank=2, method="cauchy", backend=backend, **TIMES),
}


BACKENDS = ["naive", "blocked", "compiled", "keops", "triton"]
# numba has a Cauchy kernel only.
of_low_rank = pytest.mark.parametrize("backend", [*BACKENDS, "numba"])
of_diagonal = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def build(backend):
    """A model of the given kind whose products go through `backend`, which has to be able to serve."""

    def make(kind):
        torch.manual_seed(0)
        op = "vandermonde" if kind == "diagonal" else "cauchy"
        try:
            select(Request.of(f"s4/{op}", dtype="complex128", groups=1, copies=1, state=1, length=1), backend)
        except BackendError as error:
            if backend == "triton" and not os.environ.get("TRITON_INTERPRET"):
                pytest.skip("the kernels are for GPUs; TRITON_INTERPRET is not set")
            pytest.skip(f"backend {backend} cannot serve s4/{op}: {error}")
        return MODELS[kind](backend)

    return make


@of_diagonal
def test_the_kernel_is_that_of_the_dense_diagonal_model(build, backend, dense, relative):
    model = build("diagonal")
    assert relative(model(LENGTH), dense(model).kernel(LENGTH)) < 1e-11


@of_low_rank
@pytest.mark.parametrize("kind", ["legs", "legt"])
def test_the_kernel_is_that_of_the_dense_model_of_low_rank(kind, build, backend, dense, relative):
    model = build(kind)
    assert relative(model(LENGTH), dense(model).kernel(LENGTH)) < 1e-11


@of_diagonal
def test_states_and_responses_are_those_of_the_loop(build, backend, dense, relative):
    model = build("diagonal")
    u = torch.randn(2, 3, LENGTH, dtype=torch.float64)
    state = torch.randn(2, 3, 4, dtype=torch.complex128)
    outputs = dense(model).run(torch.zeros_like(u), state)[0]
    assert relative(model.response(state, LENGTH), outputs) < 1e-11
    states = dense(model).run(u, state)[1]
    assert relative(model.advance(u, state), states[..., -1]) < 1e-11


@of_low_rank
def test_gradients_of_a_model_of_low_rank_are_those_of_the_definition(build, backend, relative):
    compare_gradients("legs", build, relative)


@of_diagonal
def test_gradients_of_a_diagonal_model_are_those_of_the_definition(build, backend, relative):
    compare_gradients("diagonal", build, relative)


def compare_gradients(kind, build, relative):
    model, plain = build(kind), MODELS[kind]("naive")
    plain.load_state_dict(model.state_dict())
    weights = torch.randn(2, 3, LENGTH, dtype=torch.float64)
    (model(LENGTH) * weights).sum().backward()
    (plain(LENGTH) * weights).sum().backward()
    for name, parameter in plain.named_parameters():
        assert relative(model.get_parameter(name).grad, parameter.grad) < 1e-10, name
