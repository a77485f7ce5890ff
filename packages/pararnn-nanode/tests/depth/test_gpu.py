"""Parallel solves on a GPU are those of the walk."""

import pytest

from pararnn_nanode.integrate.schedule import schedule

pytestmark = pytest.mark.gpu


WAYS = ("picard", "windowed", "auto")
PAIRS = [*((kind, way) for kind in ("dense", "diagonal", "linear") for way in ("newton", *WAYS)), *(("convolution", way) for way in WAYS)]


@pytest.mark.parametrize(("kind", "parallel"), PAIRS)
def test_states_and_gradients_are_those_of_the_walk(equations, compare, kind, parallel):
    field, x = equations[kind]
    plan = schedule(1.0, steps=128, span=(0.0, 1.0), output="path", device="cuda")
    states, gradients, _ = compare(field.cuda(), x.cuda(), plan, parallel=parallel)
    assert states < 1e-10
    assert gradients < 1e-9
