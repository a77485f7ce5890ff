"""What fields refuse, with what to do about it; and the questions they answer about themselves."""

import copy
import pickle

import pytest
import torch

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn.structures import Dense, Diagonal
from pararnn_nanode import AppendTimeField, BucketPath, CallableField, ConstantPath, ConvField, DenseField, DiagonalField
from pararnn_nanode.fields.layer import ACTIVATIONS


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DenseField(3, ConstantPath((3, 4))), r"DenseField of 3 channels needs a path of shape \(3, 3\), got \(3, 4\)"),
        (lambda: AppendTimeField(3, ConstantPath((3, 3))), r"AppendTimeField of 3 channels needs a path of shape \(3, 4\)"),
        (lambda: DiagonalField(3, ConstantPath((3, 3))), r"needs a path of shape \(3,\)"),
        (lambda: DenseField(3, ConstantPath((3, 3)), bias=ConstantPath(4)), r"bias of a DenseField of 3 channels .* got \(4,\)"),
        (lambda: DenseField(3, ConstantPath((3, 3)), input=ConstantPath((4, 2))), r"\(3, inputs\), got \(4, 2\)"),
        (lambda: DiagonalField(3, ConstantPath(3), input=ConstantPath((4, 2))), r"\(3, inputs\), got \(4, 2\)"),
        (lambda: ConvField(4, 3, ConstantPath((4, 4))), r"1 to 3 kernel sizes, got \(4, 4\)"),
        (lambda: ConvField(4, 3, ConstantPath((4, 4, 5, 5))), r"needs a path of shape \(4, 4, 3, 3\), got \(4, 4, 5, 5\)"),
        (lambda: ConvField(4, 3, ConstantPath((4, 4, 3)), input=ConstantPath((4, 2, 2))), r"\(4, inputs, \*odd kernel\), got \(4, 2, 2\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_the_one_that_does(make, words):
    with pytest.raises(ShapeError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DenseField(3, ConstantPath((3, 3)), activation="swish"), "one of tanh, relu.*got 'swish'"),
        (lambda: DenseField(3, ConstantPath((3, 3)), activation=torch.nn.PReLU()), "PReLU.*CallableField"),
        (lambda: ConvField(4, 2, ConstantPath((4, 4, 2, 2))), "odd"),
        (lambda: ConvField(4, 3, ConstantPath((4, 4, 3, 3)), groups=3), "groups must divide the 4 channels, got 3"),
        (lambda: CallableField(3.0), "float"),
    ],
)
def test_an_option_that_cannot_work_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_inputs_need_an_input_path():
    with pytest.raises(ConfigError, match="without an input path"):
        DenseField(3, ConstantPath((3, 3)))(0.0, torch.ones(2, 3), torch.ones(2, 1))


def test_an_input_path_needs_inputs():
    with pytest.raises(InputError, match="no inputs u were given"):
        DenseField(3, ConstantPath((3, 3)), input=ConstantPath((3, 2)))(0.0, torch.ones(2, 3))


def test_inputs_of_another_size_are_refused():
    with pytest.raises(ShapeError, match=r"are \(\*batch, 2\), got \(5, 3\)"):
        DenseField(3, ConstantPath((3, 3)), input=ConstantPath((3, 2)))(0.0, torch.ones(5, 3), torch.ones(5, 3))


@pytest.mark.parametrize("field", [DenseField(3, ConstantPath((3, 3))), ConvField(3, 1, ConstantPath((3, 3, 1, 1)))], ids=["dense", "conv"])
def test_a_state_of_other_channels_is_refused(field):
    with pytest.raises(ShapeError, match="3 channels"):
        field.check_state(torch.ones(2, 4, *(5,) * field.sites))


def test_edges_are_those_of_every_path_and_of_the_function():
    field = DenseField(3, BucketPath((3, 3), 2), bias=BucketPath(3, 4))
    assert field.edges() == (0.25, 0.5, 0.75)
    assert CallableField(field, edges=(0.6,)).edges() == (0.25, 0.5, 0.6, 0.75)


def test_a_field_tells_what_its_jacobian_looks_like():
    assert DenseField(3, ConstantPath((3, 3))).structure is Dense
    assert AppendTimeField(3, ConstantPath((3, 4))).structure is Dense
    assert DiagonalField(3, ConstantPath(3)).structure is Diagonal
    assert ConvField(3, 3, ConstantPath((3, 3, 3))).structure is None
    assert CallableField(torch.sin).structure is None


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_copies_and_pickles_of_a_field_give_the_same(activation):
    field = DenseField(3, ConstantPath((3, 3)), bias=ConstantPath(3), activation=activation)
    x = torch.randn(2, 3)
    for twin in (copy.deepcopy(field), pickle.loads(pickle.dumps(field))):
        assert torch.equal(twin(0.0, x), field(0.0, x))


def test_a_field_says_what_it_is():
    text = repr(ConvField(4, 3, ConstantPath((4, 2, 3, 3)), groups=2))
    assert "channels=4, kernel=(3, 3), groups=2, activation='tanh'" in text
