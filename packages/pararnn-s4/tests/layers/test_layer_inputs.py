"""Padding, cut kernels, and inputs that cannot be meant."""

import pytest
import torch

from pararnn import ParaRNN
from pararnn.errors import BackendError, ConfigError, DTypeError, InputError, ShapeError
from pararnn_s4 import S4, S4D


@pytest.mark.parametrize("padding", [0.0, 5.0, float("nan")], ids="padding {}".format)
def test_padding_enters_neither_outputs_nor_states(make, kind, sequences, random_state, close, padding):
    layer, x = make(kind), sequences()
    lengths, start = torch.tensor([4, 19, 0]), random_state(layer)
    for row, length in enumerate(lengths.tolist()):
        x[row, length:] = padding
    y, state = layer(x, start, lengths=lengths, return_state=True)
    for row, length in enumerate(lengths.tolist()):
        alone, after = layer(x[row : row + 1, :length], start[row : row + 1], return_state=True)
        close(y[row : row + 1, :length], alone)
        close(state[row : row + 1], after)


@pytest.mark.parametrize("bidirectional", [True, "exclusive"])
@pytest.mark.parametrize("options", [{}, {"bottleneck": 2}, {"gate": 2}], ids=str)
def test_padding_is_not_heard_backwards(make, family, sequences, close, bidirectional, options):
    layer, x = make(family, bidirectional=bidirectional, **options), sequences()
    y = layer(x, lengths=torch.tensor([4, 19, 11]))
    for row, length in enumerate((4, 19, 11)):
        close(y[row : row + 1, :length], layer(x[row : row + 1, :length]))


def test_padding_takes_no_gradient(make, family, sequences):
    layer, x = make(family, bidirectional=True, bottleneck=2), sequences().requires_grad_()
    layer(x, lengths=torch.tensor([4, 19, 11]))[:, :4].sum().backward()
    assert not x.grad[0, 4:].any()
    assert x.grad[0, :4].all()


@pytest.mark.parametrize("length", [7, 19])
def test_one_int_serves_all_rows(make, family, sequences, close, length):
    layer, x = make(family), sequences()
    y, state = layer(x, lengths=length, return_state=True)
    shorter, after = layer(x[:, :length], return_state=True)
    close(y[:, :length], shorter)
    close(state, after)


def test_lengths_may_be_a_list_or_a_tuple(make, family, sequences, close):
    layer, x = make(family), sequences()
    expected = layer(x, lengths=torch.tensor([4, 19, 11]), return_state=True)
    for lengths in ([4, 19, 11], (4, 19, 11)):
        for one, other in zip(layer(x, lengths=lengths, return_state=True), expected, strict=True):
            close(one, other, atol=0)


def test_lengths_outside_of_the_rows_are_refused(make, sequences):
    with pytest.raises(InputError, match="20"):
        make("s4d")(sequences(), lengths=20)


def test_a_cut_kernel_forgets_what_is_further_back(make, family, sequences, close):
    layer, x = make(family, l_max=6, activation=None, final_act=None), sequences()
    kernel = layer.ssm(6)[0]
    expected = layer.D * x
    for lag in range(6):
        expected[:, lag:] += kernel[:, lag] * x[:, : 19 - lag]
    close(layer(x), expected)


def test_a_cut_kernel_covers_the_same_time_at_every_rate(make, family):
    layer = make(family, l_max=6, activation=None, final_act=None)
    impulse = torch.zeros(1, 19, 8, dtype=torch.float64)
    impulse[:, 0] = 1
    assert layer(impulse, rate=0.5)[0].abs().sum(-1).gt(1e-12).sum() == 12


def test_sequences_within_l_max_are_not_cut(make, family, sequences, walk, close):
    layer, x = make(family, l_max=19), sequences()
    y, state = layer(x, return_state=True)
    outputs, after = walk(layer, x, layer.init_state(3))
    close(y, outputs)
    close(state, after)


def test_states_of_a_cut_kernel_are_refused(make, family, sequences):
    layer, x = make(family, l_max=6), sequences()
    with pytest.raises(ConfigError, match=r"l_max=6 .* 19 .*l_max=None"):
        layer(x, return_state=True)
    with pytest.raises(ConfigError, match="l_max=6"):
        layer(x, layer.init_state(3))


def test_a_bidirectional_layer_has_no_states(make, family, sequences):
    layer, x = make(family, bidirectional=True), sequences()
    state = make(family).init_state(3)
    for call in (
        lambda: layer(x, state),
        lambda: layer(x, return_state=True),
        lambda: layer.step(x[:, 0], state),
        lambda: layer.step(x[:, 0]),
        lambda: layer.init_state(3),
        lambda: layer.decoder(),
    ):
        with pytest.raises(ConfigError, match="bidirectional=False"):
            call()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda state: state[:2], ShapeError, r"\(3, 8, 4\) torch\.complex128.*conjugate pair.*got \(2, 8, 4\).*init_state"),
        (lambda state: torch.cat((state, state), -1), ShapeError, r"got \(3, 8, 8\)"),
        (lambda state: state.real, DTypeError, r"got \(3, 8, 4\) torch\.float64"),
        (lambda state: state.to(torch.complex64), DTypeError, r"complex64"),
        (lambda state: (state,), ShapeError, "got tuple"),
    ],
    ids=["batch", "both of each pair", "real", "single precision", "tuple"],
)
def test_states_of_another_form_are_named(make, family, sequences, change, error, message):
    layer = make(family)
    for call in (layer, lambda x, state: layer.step(x[:, 0], state)):
        with pytest.raises(error, match=message):
            call(sequences(), change(layer.init_state(3)))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(3, 8), ShapeError, r"\(batch, length, d_model\) with d_model=8, got \(3, 8\); for one sample at a time use step"),
        (torch.zeros(3, 8, 19), ShapeError, r"got \(3, 8, 19\)"),
        (torch.zeros(3, 19, 8), DTypeError, r"x is torch.float32, but S4D? holds torch.float64"),
        (torch.zeros(3, 19, 8, dtype=torch.int64), DTypeError, "int64"),
        ([[[0.0]]], ShapeError, "got list"),
    ],
    ids=["one sample", "transposed", "single precision", "ints", "list"],
)
def test_inputs_of_another_form_are_named(make, family, x, error, message):
    with pytest.raises(error, match=message):
        make(family)(x)


def test_a_transposed_layer_says_what_it_takes(make):
    with pytest.raises(ShapeError, match=r"\(batch, d_model, length\), since transposed=True, with d_model=8, got \(3, 19, 8\)"):
        make("s4d", transposed=True)(torch.zeros(3, 19, 8, dtype=torch.float64))


def test_a_step_takes_one_sample(make):
    layer = make("s4d")
    with pytest.raises(ShapeError, match=r"S4D\.step takes one sample a row"):
        layer.step(torch.zeros(3, 19, 8, dtype=torch.float64), layer.init_state(3))


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "1", None, [1.0, 2.0], torch.ones(2), torch.ones((), requires_grad=True)])
def test_rates_that_mean_nothing_are_refused(make, sequences, rate):
    layer = make("s4d")
    with pytest.raises(ConfigError, match="rate must be a positive number"):
        layer(sequences(), rate=rate)
    with pytest.raises(ConfigError, match="rate must be a positive number"):
        layer.step(sequences()[:, 0], layer.init_state(3), rate=rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 8.0}, r"d_state must be an int of at least 1, got 8\.0"),
        ({"d_state": "8"}, "d_state must be an int of at least 1, got '8'"),
        ({"n_ssm": 2.0}, r"n_ssm must be an int of at least 1 or None, got 2\.0"),
        ({"channels": 2.0}, "channels"),
        ({"dropout": "a"}, r"dropout must lie in \[0, 1\), got 'a'"),
        ({"drop_kernel": None}, r"drop_kernel must lie in \[0, 1\), got None"),
        ({"gate": 0}, "gate must be an int of at least 1 or None, got 0"),
        ({"channels": 0}, "channels"),
        ({"channels": True}, "channels"),
        ({"bottleneck": 3}, "bottleneck=3 must divide d_model=8"),
        ({"activation": "gelo"}, "activation='gelo' .* gelu"),
        ({"mult_act": "glu"}, "final_act='glu'"),
        ({"dropout": 1.0}, "dropout"),
        ({"drop_kernel": -0.1}, "drop_kernel"),
        ({"l_max": 0}, "l_max"),
        ({"bidirectional": "both"}, "'exclusive'"),
        ({"method": "fft"}, "method"),
        ({"method": "scan", "bidirectional": True}, "scan"),
        ({"final_act": "gelu", "postact": "glu"}, "old name"),
        ({"n_ssm": 3}, "n_ssm"),
        ({"dropuot": 0.1}, r"S4D? has no option 'dropuot'; did you mean 'dropout'\?"),
        ({"real_scal": 2.0}, r"S4D? has no option 'real_scal'; (did you mean 'real_scale'|beside its own, init='legs' takes .*gauge)"),
        ({"windows": 2}, r"S4D? has no option 'windows'; beside its own, init='.*' takes B_clip"),
        ({"P_scale": 2.0}, r"init='.*' of S4D? has no use for P_scale; it takes B_clip"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    for layer in (S4, S4D):
        with pytest.raises(ConfigError, match=message):
            layer(**{"d_model": 8, "d_state": 8, **options})


@pytest.mark.parametrize("layer", [S4, S4D])
@pytest.mark.parametrize("dtype", [torch.int32, torch.cfloat, torch.bool], ids=str)
def test_dtypes_that_parameters_cannot_have_are_refused(layer, dtype):
    with pytest.raises(DTypeError, match=rf"parameters cannot be {dtype}; choose one of .*torch\.float32"):
        layer(8, 8, dtype=dtype)


def test_whole_numbers_may_come_from_elsewhere(numpy, family, make, sequences, close):
    layer, x = make(family, n_ssm=2, channels=2, gate=1), sequences()
    other = make(family, d_model=numpy.int64(8), d_state=torch.tensor(8), n_ssm=numpy.int32(2), channels=numpy.int64(2), gate=torch.tensor(1))
    close(other(x), layer(x), atol=0)
    for rate, lengths in ((numpy.float64(2), numpy.int64(7)), (torch.tensor(2.0), torch.tensor(7)), (numpy.int32(2), [numpy.int8(7)] * 3)):
        close(layer(x, rate=rate, lengths=lengths)[:, :7], layer(x, rate=2.0, lengths=7)[:, :7], atol=0)
        close(layer.step(x[:, 0], rate=rate)[0], layer.step(x[:, 0], rate=2.0)[0], atol=0)
        close(layer.decoder(rate=rate).step(x[:, 0])[0], layer.step(x[:, 0], rate=2.0)[0])


def test_ints_are_not_what_a_layer_could_be_converted_to(make):
    with pytest.raises(DTypeError, match=r"x is torch\.int64, but S4D holds torch\.float64; convert it: x\.to\(torch\.float64\)$"):
        make("s4d")(torch.zeros(3, 19, 8, dtype=torch.int64))


@pytest.mark.parametrize("mode", ["linear", "dense", "diagonal"])
def test_states_that_a_decoder_cannot_step_are_named(make, family, sequences, mode):
    layer, x = make(family, dtype=torch.float32, d_state=4), sequences(dtype=torch.float32)[:, 0]
    decoder = layer.decoder(mode)
    state = decoder.init_state(3)
    for wrong, error in (
        (state.to(torch.complex128 if state.is_complex() else torch.float64), DTypeError),
        (state[:1], ShapeError),
        ((state,), ShapeError),
    ):
        with pytest.raises(error, match=r"the state in the basis of this decoder, as enter\(state\) gives it, must be \(3, 8, "):
            decoder.step(x, wrong)


def test_a_cell_remembers_beyond_the_cut_of_the_kernel(make, family, sequences, close):
    cut, whole = (make(family, l_max=l_max, activation=None, final_act=None) for l_max in (6, None))
    x = sequences()
    close(ParaRNN(cut.cell())(x), whole(x))
    assert not torch.allclose(cut(x), whole(x))


def test_an_option_that_a_kind_of_the_mixture_takes_is_taken():
    assert S4D(8, 8, init=["diag-lin", "diag-inv"], real_scale=2.0).ssm.n_ssm == 8


@pytest.mark.parametrize(("layer", "op"), [(S4, "s4/cauchy"), (S4D, "s4/vandermonde")])
@pytest.mark.parametrize("backend", ["cud", "", None, ["cuda"]])
def test_backends_that_nobody_offers_are_refused_when_the_layer_is_made(layer, op, backend):
    with pytest.raises(BackendError, match=rf"{op} has no backend named .*there are auto, naive, blocked, .*cuda"):
        layer(8, 8, backend=backend)


@pytest.mark.parametrize("backend", ["naive", "pararnn-s4:naive"])
def test_backends_that_are_offered_may_be_named(family, sequences, close, make, backend):
    layer, x = make(family, backend=backend), sequences()
    close(layer(x), make(family)(x))
