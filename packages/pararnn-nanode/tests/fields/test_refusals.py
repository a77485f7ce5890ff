"""What fields refuse, with what to do about it; and the questions they answer about themselves."""

import copy
import pickle

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn.structures import Dense, Diagonal
from pararnn_nanode import (
    NANODE,
    AppendTimeField,
    BucketPath,
    CallableField,
    CallablePath,
    ConstantPath,
    ConvField,
    DenseField,
    DiagonalField,
    HyperPath,
    OrthogonalPath,
    TrigPath,
    odeint,
)
from pararnn_nanode.fields.layer import ACTIVATIONS


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DenseField(3, ConstantPath((3, 4))), r"DenseField of 3 channels needs a path of shape \(3, 3\), got \(3, 4\)"),
        (lambda: AppendTimeField(3, ConstantPath((3, 3))), r"AppendTimeField of 3 channels needs a path of shape \(3, 4\)"),
        (lambda: DiagonalField(3, ConstantPath((3, 3))), r"needs a path of shape \(3,\)"),
        (lambda: DenseField(3, ConstantPath((3, 3)), bias=ConstantPath(4)), r"bias of a DenseField of 3 channels .* got \(4,\)"),
        (lambda: DenseField(3, ConstantPath((3, 3)), input=ConstantPath((4, 2))), r"\(3, inputs\), got \(4, 2\)"),
        (lambda: DiagonalField(3, ConstantPath(3, gain=1.0), input=ConstantPath((4, 2))), r"\(3, inputs\), got \(4, 2\)"),
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
    assert CallableField(torch.sin, edges=(0.6, 0.2)).edges() == (0.2, 0.6)


@pytest.mark.parametrize(
    "path",
    [BucketPath((3, 3), 10), CallablePath((3, 3), torch.relu, jumps=(0.5,)), OrthogonalPath(BucketPath((3, 3), 2))],
    ids=lambda path: type(path).__name__,
)
@pytest.mark.parametrize("serve", [CallableField, NANODE, lambda fn: odeint(fn, torch.ones(3), [0.0, 1.0])], ids=["field", "block", "odeint"])
def test_a_module_that_reads_jumping_weights_from_a_time_alone_is_refused(serve, path):
    with pytest.raises(ConfigError, match=rf"path \({type(path).__name__}\).*derive it from Field and read its paths in weights"):
        serve(Reading(path))


def test_a_field_in_the_place_of_a_function_is_sent_to_the_block():
    with pytest.raises(ConfigError, match="give it to NANODE as it is"):
        odeint(DenseField(3, BucketPath((3, 3), 2)), torch.ones(3), [0.0, 1.0])


class Reading(torch.nn.Module):
    """A right-hand side that reads a path itself."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, t, x):
        return self.path.at(t) @ x


@pytest.mark.parametrize("path", [TrigPath(4, 1), BucketPath(4, 3), HyperPath(4, 2)], ids=lambda path: type(path).__name__)
def test_a_diagonal_of_zeros_is_refused_unless_it_is_asked_for(path):
    with pytest.raises(ConfigError, match=rf"this {type(path).__name__}, whose 4 weights are all zero at first.*gain=1.0"):
        DiagonalField(4, path)
    DiagonalField(4, TrigPath(4, 1, gain=0.0))


@pytest.mark.parametrize("field", [DenseField(3, ConstantPath((3, 3))), ConvField(3, 1, ConstantPath((3, 3, 1)))], ids=["dense", "conv"])
def test_a_complex_state_of_real_weights_is_refused_with_both(field):
    with pytest.raises(DTypeError, match=r"complex64 and the weights are torch.float32; make the paths with dtype=torch.complex64"):
        NANODE(field)(torch.ones(2, 3, *(5,) * field.sites, dtype=torch.complex64))


def test_real_weights_scale_complex_states():
    field = DiagonalField(3, ConstantPath(3, gain=1.0), activation=None)
    x = torch.randn(2, 3, dtype=torch.complex64)
    torch.testing.assert_close(NANODE(field, 1)(x), x + field.path.weight * x)


def test_a_field_tells_what_its_jacobian_looks_like():
    assert DenseField(3, ConstantPath((3, 3))).structure is Dense
    assert AppendTimeField(3, ConstantPath((3, 4))).structure is Dense
    assert DiagonalField(3, ConstantPath(3, gain=1.0)).structure is Diagonal
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
