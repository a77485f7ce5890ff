"""Parallel solves on a GPU are those of the walk."""

import pytest

from pararnn_nanode.integrate.schedule import schedule

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed", "auto"])
@pytest.mark.parametrize("kind", ["dense", "diagonal", "convolution", "linear"])
def test_states_and_gradients_are_those_of_the_walk(equations, compare, kind, parallel):
    field, x = equations[kind]
    if parallel == "newton" and field.structure is None:
        pytest.skip("it has no structure")
    plan = schedule(1.0, steps=128, span=(0.0, 1.0), output="path", device="cuda")
    states, gradients, _ = compare(field.cuda(), x.cuda(), plan, parallel=parallel)
    assert states < 1e-10
    assert gradients < 1e-9
