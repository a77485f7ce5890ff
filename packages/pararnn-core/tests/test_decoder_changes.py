"""`Decoder` when something changes or fails: new modules are seen, refused rows and states leave everything alone, a failed step is none."""

import pytest
import torch
from torch import nn
from toy_cells import DiagonalGRU, ToyCell

from pararnn import CellError, ConfigError, DTypeError, NewtonConfig, ParaRNN, Request, ShapeError
from pararnn.compiler.engines import engines

BACKENDS = ["torch", *(name for name, engine in engines() if not engine.reasons(Request.of("solve", device="cpu")))]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Gained(nn.Module):
    """`tanh(gain h)`, part of a step."""

    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(size, dtype=torch.float64) / 2)

    def forward(self, state):
        return torch.tanh(self.gain * state)


class Nested(ToyCell):
    """A cell whose drive and step are modules of their own, and whose states begin at a quarter."""

    def __init__(self, d_in, state_size):
        super().__init__(state_size)
        self.project = nn.Linear(d_in, state_size, dtype=torch.float64)
        self.inner = Gained(state_size)

    def initial_state(self, batch):
        return torch.full((batch, self.state_size), 0.25, dtype=self.inner.gain.dtype, device=self.inner.gain.device)

    def drive(self, x):
        return self.project(x)

    def step(self, state, drive):
        return self.inner(state) + drive


class Moody(Nested):
    """One whose readout fails when it is told to."""

    fails = False

    def readout(self, states):
        if self.fails:
            raise ArithmeticError("no readout today")
        return states


class Widened(Nested):
    """One that gives its states twice."""

    def readout(self, states):
        return torch.cat((states, states), dim=-1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=BACKENDS)
def config(request):
    return NewtonConfig(backend=request.param)


def sample(features=4, **options):
    return torch.randn(3, features, dtype=torch.float64).to(**options)


def agrees(decoder, model, x, tolerance):
    """Whether the next step of `decoder` is the one that `model` makes from the same states."""
    before = [state.clone() for state in decoder.states]
    output, after = model.step(x, before)
    torch.testing.assert_close(decoder.step(x), output.detach(), **tolerance["states"])
    torch.testing.assert_close(list(decoder.states), [state.detach() for state in after], **tolerance["states"])


def replace_layer(model):
    model.layers[0] = Nested(4, 5)


def replace_layers(model):
    model.layers = nn.ModuleList([Nested(4, 5), Nested(5, 5)])


def replace_drive(model):
    model.layers[0].project = nn.Linear(4, 5, dtype=torch.float64)


def replace_step(model):
    model.layers[0].inner = Gained(5)


def swap_steps(model):
    model.layers[0].inner, model.layers[1].inner = model.layers[1].inner, model.layers[0].inner


def widen_the_readout(model):
    model.layers[1] = Widened(5, 5)


@pytest.mark.parametrize("change", [replace_layer, replace_layers, replace_drive, replace_step, swap_steps, widen_the_readout])
def test_replaced_modules_count_from_the_next_step_on(config, change, tolerance):
    model = ParaRNN([Nested(4, 5), Nested(5, 5)], config=config)
    decoder = model.decoder(3)
    agrees(decoder, model, sample(), tolerance)
    change(model)
    agrees(decoder, model, sample(), tolerance)
    agrees(decoder, model, sample(), tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("change", [replace_layer, replace_drive, replace_step, swap_steps])
@pytest.mark.parametrize("graph", ["auto", "never"])
def test_replaced_modules_count_where_steps_are_replayed(change, graph, tolerance):
    model = ParaRNN([Nested(4, 5), Nested(5, 5)]).cuda()
    decoder = model.decoder(3, graph=graph)
    agrees(decoder, model, sample(device="cuda"), tolerance)
    change(model)
    model.cuda()
    agrees(decoder, model, sample(device="cuda"), tolerance)


@pytest.mark.gpu
def test_replaced_modules_count_in_a_graph_of_the_users(tolerance):
    model, x = ParaRNN(Nested(4, 5)).cuda(), sample(device="cuda")
    decoder, graph = model.decoder(3), torch.cuda.CUDAGraph()
    decoder.step(x)
    replace_step(model)
    model.cuda()
    before = [state.clone() for state in decoder.states]
    expected = model.step(x, before)[0].detach()
    with torch.cuda.graph(graph):
        decoder.step()
    graph.replay()
    torch.testing.assert_close(decoder.output, expected, **tolerance["states"])
    agrees(decoder, model, x, tolerance)


def test_a_narrower_input_of_a_new_layer_is_taken(config, tolerance):
    model = ParaRNN(Nested(4, 5), config=config)
    decoder = model.decoder(3)
    decoder.step(sample())
    with pytest.raises(ShapeError, match=r"= \(3, 4\), got \(3, 2\)"):
        decoder.step(sample(2))
    model.layers[0] = Nested(2, 5)
    agrees(decoder, model, sample(2), tolerance)
    assert decoder.input.shape == (3, 2)


def other_size(model):
    model.layers[1] = Nested(5, 6)


def one_more(model):
    model.layers.append(Nested(5, 5))


def other_dtype(model):
    model.float()


@pytest.mark.parametrize("change", [other_size, one_more, other_dtype])
def test_a_model_whose_states_are_others_needs_a_new_decoder(config, change):
    model = ParaRNN([Nested(4, 5), Nested(5, 5)], config=config)
    decoder = model.decoder(3)
    decoder.step(sample())
    before = [state.clone() for state in decoder.states]
    change(model)
    for refused in (lambda: decoder.step(sample()), lambda: decoder.step(sample().float()), decoder.step, decoder.reset):
        with pytest.raises(ConfigError, match=r"by now, and (were|had) .* when this decoder was made; make a new one"):
            refused()
    torch.testing.assert_close(list(decoder.states), before, rtol=0, atol=0)


def test_a_layer_that_is_no_cell_is_refused(config, tolerance):
    model = ParaRNN([Nested(4, 5), Nested(5, 5)], config=config)
    decoder, cell = model.decoder(3), model.layers[1]
    decoder.step(sample())
    model.layers[1] = nn.Linear(5, 5)
    with pytest.raises(CellError, match="Linear lacks"):
        decoder.step(sample())
    model.layers[1] = cell
    agrees(decoder, model, sample(), tolerance)


def test_a_first_sample_that_fails_is_forgotten(config, tolerance):
    model = ParaRNN([Nested(4, 5), Nested(5, 5)], config=config)
    decoder = model.decoder(3)
    with pytest.raises(ShapeError, match="drive of Nested"):
        decoder.step(sample(3))
    with pytest.raises(DTypeError, match=r"x\.to\(torch\.float64\)"):
        decoder.step(sample().float())
    assert decoder.input is decoder.output is None
    torch.testing.assert_close(list(decoder.states), list(model.initial_state(3)), rtol=0, atol=0)
    agrees(decoder, model, sample(), tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("graph", ["auto", "never"])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_first_step_that_fails_leaves_the_decoder_as_it_was(config, device, graph, failing, tolerance):
    config = NewtonConfig() if device == "cuda" else config
    model = ParaRNN([Moody(4, 5), Moody(5, 5)], config=config).to(device)
    decoder, x = model.decoder(3, graph=graph), sample(device=device)
    model.layers[failing].fails = True
    with pytest.raises(ArithmeticError):
        decoder.step(x)
    torch.testing.assert_close(list(decoder.states), list(model.initial_state(3)), rtol=0, atol=0)
    model.layers[failing].fails = False
    agrees(decoder, model, x, tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_later_step_that_fails_leaves_states_and_output_as_they_were(config, device, failing, tolerance):
    config = NewtonConfig() if device == "cuda" else config
    model = ParaRNN([Moody(4, 5), Moody(5, 5)], config=config).to(device)
    decoder = model.decoder(3, graph="never")
    output = decoder.step(sample(device=device))
    before = [tensor.clone() for tensor in (output, *decoder.states)]
    model.layers[failing].fails = True
    with pytest.raises(ArithmeticError):
        decoder.step(sample(device=device))
    torch.testing.assert_close([output, *decoder.states], before, rtol=0, atol=0)
    model.layers[failing].fails = False
    agrees(decoder, model, sample(device=device), tolerance)


def test_after_a_refresh_samples_may_have_another_dtype():
    class Counted(Nested):
        def drive(self, x):
            return self.project(x.double())

    decoder = ParaRNN(Counted(4, 5)).decoder(3)
    decoder.step(sample())
    with pytest.raises(DTypeError, match=r"torch\.int64, and was torch\.float64"):
        decoder.step(sample().long())
    decoder.refresh()
    assert decoder.step(sample().long()).dtype == torch.float64


@pytest.mark.parametrize(
    "rows",
    [[True, False, False], 0, torch.tensor([0], dtype=torch.int32), torch.tensor([True, False, False])],
    ids=["mask, list", "int", "int32", "mask"],
)
def test_reset_takes_rows_in_every_form(config, rows):
    model = ParaRNN([Nested(4, 5), DiagonalGRU(5, 6)], config=config)
    decoder = model.decoder(3)
    decoder.step(sample())
    expected = [torch.cat((new[:1], old[1:])) for new, old in zip(model.initial_state(3), decoder.states, strict=True)]
    decoder.reset(rows)
    torch.testing.assert_close(list(decoder.states), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rows", "error"),
    [([1.7], DTypeError), (torch.tensor([1, 0, 0], dtype=torch.uint8), DTypeError), ([0, 3], ShapeError), ([True, False], ShapeError)],
    ids=["fraction", "uint8", "beyond", "short mask"],
)
def test_nothing_is_reset_where_rows_are_refused(config, rows, error):
    model = ParaRNN([Nested(4, 5), DiagonalGRU(5, 6)], config=config)
    decoder = model.decoder(3)
    decoder.step(sample())
    before = [state.clone() for state in decoder.states]
    for refused in (lambda: decoder.reset(rows), lambda: decoder.load(model.initial_state(3), rows)):
        with pytest.raises(error, match="rows"):
            refused()
    torch.testing.assert_close(list(decoder.states), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("states", "error", "message"),
    [
        ([torch.zeros(3, 5), torch.zeros(3, 6, dtype=torch.complex64)], DTypeError, "layer 1 are torch.complex64, .* torch.float64; pass their real"),
        (None, DTypeError, "got NoneType"),
        ([torch.zeros(3, 5), 1.0], DTypeError, "got float"),
        ([torch.zeros(3, 5)], ShapeError, "states have shapes"),
    ],
    ids=["complex", "none", "number", "one layer"],
)
def test_states_that_cannot_be_loaded_are_refused_and_none_is(config, states, error, message):
    decoder = ParaRNN([Nested(4, 5), DiagonalGRU(5, 6)], config=config).decoder(3)
    decoder.step(sample())
    before = [state.clone() for state in decoder.states]
    with pytest.raises(error, match=message):
        decoder.load(states)
    torch.testing.assert_close(list(decoder.states), before, rtol=0, atol=0)


def test_states_of_the_decoder_itself_may_be_loaded_in_another_order():
    decoder = ParaRNN([Nested(4, 5), Nested(5, 5)]).decoder(3)
    decoder.step(sample())
    first, second = (state.clone() for state in decoder.states)
    decoder.load([decoder.states[1], decoder.states[0]])
    torch.testing.assert_close(list(decoder.states), [second, first], rtol=0, atol=0)
