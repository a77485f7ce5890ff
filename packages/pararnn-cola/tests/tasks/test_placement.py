from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pararnn.errors import ConfigError
from pararnn_cola.tasks import loss_weights

LENGTHS = st.integers(1, 300)
PLACEMENTS = st.one_of(st.sampled_from(["every", "last"]), st.floats(0, 1, exclude_min=True), st.just(1))


@given(LENGTHS, PLACEMENTS)
def test_weights_sum_to_one_and_are_equal_where_they_are_not_zero(length, placement):
    weights = loss_weights(length, placement)
    assert weights.shape == (length,)
    assert float(weights.double().sum()) == pytest.approx(1, abs=1e-6)
    assert len(set(weights[weights > 0].tolist())) == 1


@given(LENGTHS, PLACEMENTS)
def test_the_steps_with_a_loss_are_the_last_ones(length, placement):
    weighed = (loss_weights(length, placement) > 0).tolist()
    assert weighed == sorted(weighed)
    assert weighed[-1]


@given(LENGTHS, st.integers(1, 1000))
def test_a_share_is_rounded_up_to_whole_steps_from_the_decimal_that_was_written(length, thousandths):
    expected = next(count for count in range(1, length + 1) if count >= Fraction(thousandths, 1000) * length)
    assert int((loss_weights(length, thousandths / 1000) > 0).sum()) == expected


def test_a_share_may_be_a_number_of_another_kind():
    numpy = pytest.importorskip("numpy")
    for share in (numpy.float32(0.1), numpy.float64(0.1), Fraction(1, 10)):
        assert int((loss_weights(30, share) > 0).sum()) == 3


def test_every_step_has_a_loss_or_only_the_last_one():
    torch.testing.assert_close(loss_weights(4, "every"), torch.full((4,), 0.25))
    torch.testing.assert_close(loss_weights(4, "last"), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(loss_weights(4, 0.3), torch.tensor([0.0, 0.0, 0.5, 0.5]))


@pytest.mark.parametrize("placement", ["first", "", 0.0, -0.5, 1.5, float("nan"), None, True, (0.5,)], ids=repr)
def test_a_placement_that_is_none_is_refused_with_what_there_is(placement):
    with pytest.raises(ConfigError, match=r'"every" step, at the "last" one, or on a share in \(0, 1\]'):
        loss_weights(10, placement)


@pytest.mark.parametrize("length", [0, -3, 2.0, "5", True], ids=repr)
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ConfigError, match="a whole number of steps, at least 1"):
        loss_weights(length, "every")
