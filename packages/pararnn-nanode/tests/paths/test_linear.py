import copy
import io
import math

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_nanode import BucketPath, ConstantPath, CosinePath, HyperPath, PolyPath, TrigPath
from pararnn_nanode.paths.base import WeightPath
from pararnn_nanode.paths.linear import LinearPath

KINDS = {
    "constant": (lambda shape, **more: ConstantPath(shape, **more), 1),
    "bucket": (lambda shape, **more: BucketPath(shape, 5, **more), 5),
    "legendre": (lambda shape, **more: PolyPath(shape, 4, **more), 5),
    "chebyshev": (lambda shape, **more: PolyPath(shape, 4, basis="chebyshev", **more), 5),
    "monomial": (lambda shape, **more: PolyPath(shape, 4, basis="monomial", **more), 5),
    "trig": (lambda shape, **more: TrigPath(shape, 3, **more), 7),
    "cosine": (lambda shape, **more: CosinePath(shape, 4, **more), 5),
    "mlp": (lambda shape, **more: HyperPath(shape, 6, **more), 7),
    "recurrent": (lambda shape, **more: HyperPath(shape, 6, variant="recurrent", **more), 7),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
TIMES = torch.linspace(0, 1, 23, dtype=torch.float64)


@every_kind
def test_weights_are_the_sum_of_coefficients_times_basis(kind):
    path = KINDS[kind][0]((4, 3, 2), dtype=torch.float64)
    basis = path.basis(TIMES, TIMES)
    expected = torch.zeros(23, 4, 3, 2, dtype=torch.float64)
    for m in range(23):
        for k in range(path.columns):
            expected[m] += basis[m, k] * path.coefficients[k]
    torch.testing.assert_close(path.grid(TIMES), expected, rtol=1e-13, atol=1e-13)


@every_kind
def test_the_matrices_are_counted(kind):
    make, matrices = KINDS[kind]
    path = make((4, 4))
    assert path.n_matrices == path.columns == matrices
    assert path.coefficients.shape == (matrices, 4, 4)


@every_kind
def test_the_first_weights_have_the_variance_of_a_constant_path_at_all_times(kind):
    torch.manual_seed(0)
    grid = KINDS[kind][0]((300, 300)).grid(torch.linspace(0, 1, 11))
    deviations = grid.detach().flatten(1).std(1) * math.sqrt(300)
    assert ((deviations > 0.97) & (deviations < 1.2)).all(), deviations


@every_kind
def test_a_kernel_counts_all_its_inputs(kind):
    torch.manual_seed(0)
    weight = KINDS[kind][0]((64, 32, 3, 3)).at(0.3)
    assert weight.std().item() * math.sqrt(32 * 9) == pytest.approx(1.05, abs=0.12)


@every_kind
def test_a_vector_starts_as_a_bias_of_zero_unless_a_gain_says_otherwise(kind):
    torch.manual_seed(0)
    make, _ = KINDS[kind]
    assert not make((500,)).at(0.4).any()
    assert make(500, gain=2.0).at(0.4).std().item() == pytest.approx(2.1, abs=0.3)


@every_kind
def test_complex_coefficients_give_complex_weights(kind):
    path = KINDS[kind][0]((3, 2), dtype=torch.complex128)
    weights = path.grid(TIMES)
    basis = path.basis(TIMES, TIMES)
    assert weights.dtype is torch.complex128
    parts = [torch.einsum("mk,kab->mab", basis.double(), part) for part in (path.coefficients.real, path.coefficients.imag)]
    torch.testing.assert_close(weights, torch.complex(*parts), rtol=1e-13, atol=1e-13)


@every_kind
def test_the_rank_never_exceeds_the_number_of_steps(kind):
    path = KINDS[kind][0]((2, 2), dtype=torch.float64)
    assert path.rank(TIMES) <= path.columns
    assert path.rank(torch.tensor([0.0, 0.5])) <= 2


@pytest.mark.parametrize("variant", ["mlp", "recurrent"])
def test_the_rank_of_learned_features_does_not_depend_on_the_first_ones(variant):
    path = HyperPath((2, 2), 3, variant=variant)
    with torch.no_grad():
        path.rate.zero_()
    assert path.rank(torch.linspace(0, 1, 10)) == 4
    assert path.rank(torch.tensor([0.0, 0.5, 0.5, 1.0])) == 3


FAMILIES = {
    "trigonometric": TrigPath((4, 4), 2),
    "cosine": CosinePath((4, 4), 4),
    "legendre": PolyPath((4, 4), 4),
    "monomial": PolyPath((4, 4), 4, basis="monomial"),
    "piecewise constant": BucketPath((4, 4), 5),
}


@pytest.mark.parametrize("loaded", FAMILIES)
@pytest.mark.parametrize("saved", FAMILIES)
def test_coefficients_are_loaded_into_a_path_of_the_same_functions_only(saved, loaded):
    file = io.BytesIO()
    torch.save(torch.nn.Sequential(FAMILIES[saved]).state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert list(state) == ["0.coefficients"]
    target = torch.nn.Sequential(copy.deepcopy(FAMILIES[loaded]))
    if saved == loaded:
        target.load_state_dict(state)
    else:
        with pytest.raises(RuntimeError, match=f"0.coefficients belong to {saved} functions of time, .* has {loaded} ones"):
            target.load_state_dict(state)


def test_eleven_trigonometric_columns_on_ten_steps_have_rank_ten():
    steps = torch.arange(10) / 10
    assert TrigPath((2, 2), 4).rank(steps) == 9
    assert TrigPath((2, 2), 5).rank(steps) == 10


def test_three_steps_tell_three_of_the_seven_matrices_of_order_three_apart():
    assert TrigPath((2, 2), 3).rank(torch.tensor([0.0, 1 / 3, 2 / 3])) == 3


def test_a_constant_grid_is_a_view():
    path = ConstantPath((3, 3))
    grid = path.grid(torch.zeros(1000))
    assert grid.untyped_storage().data_ptr() == path.coefficients.untyped_storage().data_ptr()
    assert grid.stride()[0] == 0


def test_the_weight_of_a_constant_path_can_be_set():
    path = ConstantPath((2, 2))
    with torch.no_grad():
        path.weight.copy_(torch.eye(2))
    assert torch.equal(path.at(0.7), torch.eye(2))


def test_parameters_on_meta_cost_nothing():
    path = TrigPath((10**6, 10**6), 3, device="meta")
    assert path.at(0.5).shape == (10**6, 10**6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BucketPath((2, 2), 0), "buckets is a whole number of at least 1, got 0"),
        (lambda: PolyPath((2, 2), -1), "degree is a whole number of at least 0, got -1"),
        (lambda: PolyPath((2, 2), 2, basis="hermite"), "basis must be one of legendre, chebyshev, monomial, got 'hermite'"),
        (lambda: TrigPath((2, 2), 1.5), "order is a whole number of at least 0, got 1.5"),
        (lambda: TrigPath((2, 2), 1, omega=0.0), "finite frequency other than 0, got 0.0"),
        (lambda: TrigPath((2, 2), 1, omega="turn"), "omega is .period. or a finite frequency"),
        (lambda: CosinePath((2, 2), -3), "order is a whole number of at least 0, got -3"),
        (lambda: HyperPath((2, 2), 0), "hidden is a whole number of at least 1, got 0"),
        (lambda: HyperPath((2, 2), 2, variant="gru"), "variant must be one of mlp, recurrent, got 'gru'"),
        (lambda: ConstantPath((0, 2)), r"sizes of at least 1, got \(0, 2\)"),
        (lambda: ConstantPath(2, span=(1.0, 1.0)), "two different finite times"),
        (lambda: ConstantPath(2).step(10, 10), "step 10 of 10: k lies in 0 ... 9"),
        (lambda: BucketPath(2, 3).step(-1, 10), "step -1 of 10: k lies in 0 ... 9"),
    ],
)
def test_what_cannot_work_is_refused_with_numbers(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_path_of_ones_own_needs_a_basis_only():
    class Sawtooth(LinearPath):
        def basis(self, times, anchors):
            return torch.stack([torch.ones_like(times), times % 1], -1)

    path = Sawtooth((2, 2), 2)
    torch.testing.assert_close(path.at(1.25), path.coefficients[0] + 0.25 * path.coefficients[1])
    assert isinstance(path, WeightPath)
