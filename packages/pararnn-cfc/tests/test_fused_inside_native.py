"""The projection inside of the C kernels: against the plain solver, and where it is used."""

import pytest
import torch

from pararnn import NewtonConfig, ParaRNN, newton_apply
from pararnn.compiler.native import toolchain
from pararnn_cfc import ParaCfC, fused_inside
from pararnn_cfc.fused_op import question
from pararnn_cfc.fused_setting import setting
from pararnn_cfc.fused_sources import Sources

pytestmark = [pytest.mark.skipif(bool(toolchain.reasons()), reason="nothing can be compiled here"), pytest.mark.usefixtures("shared_cache")]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def samples(batch, length, features):
    return torch.cat((torch.randn(batch, length, features), 0.05 + torch.rand(batch, length, 1)), dim=-1)


def chosen(features, state, *, length=40, dtype=torch.float32, interval="auto"):
    """The setting of a native solve of two sequences."""
    cell, x = ParaCfC(features + 1, state, dtype=dtype), samples(2, length, features).to(dtype)
    sources = Sources(x, cell.W_x.weight, cell.W_x.bias, cell.u, torch.zeros(2, state, dtype=torch.promote_types(dtype, torch.float32)))
    return setting(question(sources, None, "native", 0.5, interval, (1e-6, 1e-6), 0))


def solved(cell, x, backend, *, starts, needs_samples, ends=None):
    """States and gradients, in double precision."""
    x = x.clone().requires_grad_(needs_samples)
    start = torch.linspace(-1, 1, starts * cell.d_h, dtype=torch.promote_types(x.dtype, torch.float32)).view(starts, -1).requires_grad_()
    packed = None if ends is None else torch.tensor(ends)
    states = newton_apply(cell, x, NewtonConfig(backend=backend), h0=start, cu_seqlens=packed)
    cotangent = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).view_as(states).to(states)
    wanted = (start, *cell.parameters(), *((x,) if needs_samples else ()))
    return [tensor.detach().double() for tensor in (states, *torch.autograd.grad(states, wanted, cotangent))]


@pytest.mark.parametrize("needs_samples", [False, True], ids=["weights", "samples_too"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("features", "state", "form"),
    [
        (3, 32, {}),
        (1, 33, {}),
        (fused_inside.MOST_FEATURES, 128, {}),
        (3, 300, {"bias": False}),
        (3, 64, {"ends": (0, 7, 7, 40)}),
    ],
    ids=["whole_vectors", "filled_up", "most_features", "blocks_of_channels", "packed"],
)
def test_kernels_that_project_equal_the_plain_solver(features, state, form, dtype, close, needs_samples):
    ends = form.get("ends")
    batch = 1 if ends else 3
    cell, exact = ParaCfC(features + 1, state, dtype=dtype), ParaCfC(features + 1, state, dtype=torch.float64)
    with torch.no_grad():
        cell.u[::3] = 0.7
    if "bias" in form:
        cell.W_x.bias = exact.W_x.bias = None
    exact.load_state_dict(cell.state_dict())
    x = samples(batch, 40, features).to(dtype)
    options = {"starts": len(ends) - 1 if ends else batch, "needs_samples": needs_samples, "ends": ends}
    found, truth = solved(cell, x, "native", **options), solved(exact, x.double(), "torch", **options)
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close * max(1, float(theirs.abs().max())))


@pytest.mark.parametrize(
    ("features", "state", "options", "projects"),
    [
        (1, 32, {}, True),
        (fused_inside.MOST_FEATURES, 128, {"dtype": torch.bfloat16}, True),
        (fused_inside.MOST_FEATURES + 1, 128, {}, False),
        (3, 31, {}, False),
        (3, 64, {"dtype": torch.float64}, False),
        (3, 64, {"length": 1}, False),
        (3, 64, {"interval": 8}, False),
    ],
    ids=["few_features", "most_features", "more_features", "sequences_side_by_side", "double", "one_step", "intervals"],
)
def test_kernels_project_where_a_walk_reads_a_feature_once_for_all_channels(features, state, options, projects):
    found = chosen(features, state, **options)
    assert (found.inside is not None) == projects
    assert (found.inside_backward is not None) == projects


@pytest.fixture
def default(request):
    """A default of the caller's that the tensors of a kernel must not follow."""
    before = torch.get_default_dtype()
    if request.param == "meta":
        with torch.device("meta"):
            yield
        return
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("state", [4, 64])
@pytest.mark.parametrize("default", [torch.float64, "meta"], ids=str, indirect=True)
def test_defaults_of_the_caller_do_not_reach_the_memory_of_a_kernel(default, state):
    numbers = torch.Generator("cpu").manual_seed(0)
    cell = ParaCfC(5, state, dtype=torch.float32, device="cpu")
    x = torch.rand(2, 40, 5, generator=numbers, dtype=torch.float32, device="cpu")
    start = torch.zeros(2, state, dtype=torch.float32, device="cpu")
    kernel, plain = (ParaRNN(cell, config=NewtonConfig(backend=backend, interval=4)) for backend in ("native", "torch"))
    states, (result,) = kernel.solve(x, start)
    truth = plain.solve(x, start)[0]
    torch.testing.assert_close(states, truth, rtol=1e-5, atol=1e-5)
    assert result.iterations > 0
    wanted = list(cell.parameters())
    gradients = [torch.autograd.grad(found.sum(), wanted) for found in (states, truth)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
