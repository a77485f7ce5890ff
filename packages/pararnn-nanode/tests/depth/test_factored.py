"""Products that never hold the weights of all steps give what the weights give."""

import pytest
import torch

from pararnn_nanode.depth.factored import FactoredField, factored
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.fields.append_time import AppendTimeField
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.trigonometric import TrigPath

OPTIONS = {
    "bare": {},
    "biased": {"bias": TrigPath(4, 1, gain=1.0, dtype=torch.float64), "activation": "silu"},
    "driven": {"input": TrigPath((4, 3), 1, dtype=torch.float64), "activation": None},
    "both": {"bias": ConstantPath(4, gain=1.0, dtype=torch.float64), "input": TrigPath((4, 3), 1, dtype=torch.float64)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("lead", [(6,), (6, 2)], ids=["of all samples", "of each sample"])
def test_values_and_gradients_are_those_of_the_field(name, batch, lead):
    field = DenseField(4, TrigPath((4, 4), 2), **OPTIONS[name])
    other = factored(field, torch.zeros(4))
    assert isinstance(other, FactoredField)
    times = torch.rand(lead)
    u = torch.randn(*lead, *batch, 3) if "input" in OPTIONS[name] else None
    x = torch.randn(*lead, *batch, 4, requires_grad=True)
    found = []
    for one in (field, other):
        value = one.evaluate(x, one.weights(times, times, u))
        found.append((value, *torch.autograd.grad(value.square().sum(), [x, *field.parameters()])))
    for ours, truth in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, truth)


class Doubled(DenseField):
    """Evaluates otherwise than the field it inherits from."""

    def evaluate(self, x, weights):
        return 2 * super().evaluate(x, weights)


UNSUITED = {
    "another evaluation": (lambda: Doubled(4, TrigPath((4, 4), 2)), (1, 4)),
    "other weights": (lambda: AppendTimeField(4, TrigPath((4, 5), 2)), (1, 4)),
    "a path that looks pieces up": (lambda: DenseField(4, BucketPath((4, 4), 3)), (1, 4)),
    "a path that is no sum": (lambda: DenseField(4, ConstantPath((4, 4))), (1, 4)),
    "many samples": (lambda: DenseField(4, TrigPath((4, 4), 2)), (64, 4)),
}


@pytest.mark.parametrize("name", UNSUITED)
def test_what_does_not_suit_is_left_as_it_is(name):
    make, shape = UNSUITED[name]
    field = make()
    assert factored(field, torch.zeros(shape)) is field


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_solve_is_that_of_the_walk_on_both_ways(dense, compare, path, rows, parallel):
    states, gradients, _ = compare(dense(bias=TrigPath(5, 1, gain=1.0)), torch.randn(rows, 5), path(80), parallel=parallel, method="heun")
    assert states < 1e-10
    assert gradients < 1e-9


def test_single_precision_loses_less_than_the_walk_does():
    torch.manual_seed(0)
    field = DenseField(32, TrigPath((32, 32), 2, dtype=torch.float32))
    x, plan = torch.randn(1, 32, dtype=torch.float32), schedule(1.0, steps=4096, span=(0.0, 1.0))
    with torch.no_grad():
        walked, solved = fixed.integrate(field, x, plan).x, integrate(field, x, plan).x
        truth = fixed.integrate(field.double(), x.double(), plan).x
    assert float((solved - truth).abs().max()) < 1e-6
    assert float((solved - truth).abs().max()) < float((walked - truth).abs().max()) / 5
