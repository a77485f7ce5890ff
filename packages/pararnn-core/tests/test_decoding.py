"""`Decoder`: the answers of `ParaRNN.step` and of the whole, from buffers that stay, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from toy_cells import DenseRNN, DiagonalGRU, SlotLSTM, Tanh, ToyCell

from pararnn import BackendError, ConfigError, DifferentiationError, DTypeError, NewtonConfig, ParaRNN, Request, ShapeError
from pararnn.compiler.engines import engines
from pararnn.conformance.tolerances import tolerance as tolerance_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# The engines that this machine has for a CPU: C where there is a compiler, Triton where it is interpreted. Plain PyTorch is always there.
ENGINES = [name for name, engine in engines() if not engine.reasons(Request.of("solve", device="cpu"))]


class MinGRU(ToyCell):
    """A minimal gated unit with a recurrent candidate, whose states begin at learnt values."""

    def __init__(self, d_in, state_size, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.project = nn.Linear(d_in, 2 * state_size, dtype=dtype)
        self.recurrent = nn.Parameter(torch.randn(state_size, dtype=dtype) / 2)
        self.start = nn.Parameter(torch.randn(state_size, dtype=dtype) / 2)

    def initial_state(self, batch):
        return self.start.expand(batch, -1)

    def drive(self, x):
        return self.project(x).chunk(2, -1)

    def step(self, state, drive):
        update, candidate = drive
        return torch.lerp(state, torch.tanh(candidate + self.recurrent * state), torch.sigmoid(update))


class Carried(MinGRU):
    """The same in half precision, whose states are carried in float32."""

    def initial_state(self, batch):
        return torch.zeros(batch, self.state_size, device=self.start.device)

    def drive(self, x):
        return self.project(x).float().chunk(2, -1)

    def step(self, state, drive):
        update, candidate = drive
        return torch.lerp(state, torch.tanh(candidate + self.recurrent.float() * state), torch.sigmoid(update))


class Stubborn(MinGRU):
    """One that reads a value on the host in each step, which cannot be recorded."""

    def step(self, state, drive):
        return super().step(state, drive) * (2.0 if drive[0].abs().max() > 1e9 else 1.0)


class Offset(Tanh):
    """`tanh` whose input is the first channel of the sample beside the output of the layer below."""

    def layer_above_input(self, output, x):
        return output + x[..., :1]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inputs(batch=3, length=12, features=4, **options):
    return torch.randn(batch, length, features, dtype=torch.float64).to(**options)


def stack():
    return ParaRNN([MinGRU(4, 5), DiagonalGRU(5, 6), SlotLSTM(6, 3), DenseRNN(3, 4), Tanh(4)])


def decoded(decoder, x):
    return torch.stack([decoder.step(sample).clone() for sample in x.unbind(1)], dim=1)


@pytest.mark.parametrize("backend", ["torch", *ENGINES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 33, 130], ids="D{}".format)
def test_each_engine_steps_as_the_step_is_written(backend, dtype, size):
    model, x = ParaRNN(MinGRU(4, size, dtype), config=NewtonConfig(backend=backend)), inputs(dtype=dtype)
    decoder, states, outputs = model.decoder(3), None, []
    found = decoded(decoder, x)
    for sample in x.unbind(1):
        output, states = model.step(sample, states)
        outputs.append(output.detach())
    torch.testing.assert_close(found, torch.stack(outputs, dim=1), **tolerance_of(dtype, "states"))
    assert f"MinGRU: {backend}" in decoder.explain()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 3, 1024], ids="batch-{}".format)
@pytest.mark.parametrize("graph", ["auto", "never"])
def test_decoding_gives_what_the_whole_gives(device, batch, graph, tolerance):
    model, x = ParaRNN([MinGRU(4, 5), MinGRU(5, 6)]).to(device), inputs(batch, device=device)
    torch.testing.assert_close(decoded(model.decoder(batch, graph=graph), x), model(x), **tolerance["states"])


def test_decoding_gives_what_steps_give_for_cells_of_every_structure(tolerance):
    model, x = stack(), inputs()
    decoder, states, outputs = model.decoder(3), None, []
    found = decoded(decoder, x)
    for sample in x.unbind(1):
        output, states = model.step(sample, states)
        outputs.append(output)
    torch.testing.assert_close(found, torch.stack(outputs, dim=1), **tolerance["states"])
    torch.testing.assert_close(decoder.states, states, **tolerance["states"])


def test_layers_above_read_what_the_cell_below_says(tolerance):
    model, x = ParaRNN([Offset(4), Tanh(4)]), inputs()
    torch.testing.assert_close(decoded(model.decoder(3), x), model(x), **tolerance["states"])


def test_outputs_and_states_are_the_same_tensors_at_every_step():
    decoder, x = ParaRNN([MinGRU(4, 5), Tanh(5)]).decoder(3), inputs()
    states, first = decoder.states, decoder.step(x[:, 0])
    second = decoder.step(x[:, 1])
    assert first.data_ptr() == second.data_ptr() == decoder.output.data_ptr()
    assert all(before is after for before, after in zip(states, decoder.states, strict=True))
    assert [state.data_ptr() for state in states] == [state.data_ptr() for state in decoder.states]


def test_a_step_without_a_sample_reads_the_input_buffer():
    model, x = ParaRNN(MinGRU(4, 5)), inputs()
    ours, other = model.decoder(3), model.decoder(3)
    ours.step(x[:, 0])
    ours.input.copy_(x[:, 1])
    expected = decoded(other, x[:, :2])[:, 1]
    torch.testing.assert_close(ours.step(), expected, rtol=0, atol=0)


def test_outputs_are_no_states_under_another_name():
    decoder, x = ParaRNN(Tanh(4)).decoder(3), inputs()
    decoder.step(x[:, 0]).fill_(7.0)
    assert decoder.states[0].abs().max() <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_weights_edited_in_place_count_from_the_next_step_on(device, tolerance):
    model, x = ParaRNN(MinGRU(4, 5)).to(device), inputs(device=device)
    decoder = model.decoder(3)
    decoder.step(x[:, 0])
    before = [state.clone() for state in decoder.states]
    with torch.no_grad():
        model.layers[0].recurrent.mul_(-1.5)
        model.layers[0].project.weight.mul_(0.5)
    torch.testing.assert_close(decoder.step(x[:, 1]), model.step(x[:, 1], before)[0].detach(), **tolerance["states"])


@pytest.mark.parametrize("device", DEVICES)
def test_replaced_and_parametrised_weights_count_too(device, tolerance):
    model, x = ParaRNN(MinGRU(4, 5)).to(device), inputs(device=device)
    decoder = model.decoder(3)
    decoder.step(x[:, 0])
    model.layers[0].recurrent = nn.Parameter(torch.randn(5, dtype=torch.float64, device=device))
    for t, change in enumerate((lambda: None, lambda: parametrize.register_parametrization(model.layers[0], "recurrent", nn.Tanh())), start=1):
        change()
        before = [state.clone() for state in decoder.states]
        torch.testing.assert_close(decoder.step(x[:, t]), model.step(x[:, t], before)[0].detach(), **tolerance["states"])


def test_plain_numbers_of_a_cell_count_after_a_refresh(tolerance):
    model, x = ParaRNN(Tanh(4)), inputs()
    decoder = model.decoder(3)
    decoder.step(x[:, 0])
    model.layers[0].bias = 0.3
    decoder.refresh()
    before = [state.clone() for state in decoder.states]
    torch.testing.assert_close(decoder.step(x[:, 1]), model.step(x[:, 1], before)[0].detach(), **tolerance["states"])


@pytest.mark.parametrize("device", DEVICES)
def test_reset_goes_back_to_the_initial_states(device):
    model, x = ParaRNN([MinGRU(4, 5), MinGRU(5, 6)]).to(device), inputs(device=device)
    decoder = model.decoder(3)
    first = decoded(decoder, x)
    decoder.reset()
    torch.testing.assert_close(decoded(decoder, x), first, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [[0, 2], torch.tensor([2, 0]), torch.tensor([True, False, True])], ids=["list", "numbers", "mask"])
def test_reset_of_some_rows_leaves_the_others(device, rows):
    model, x = ParaRNN([MinGRU(4, 5), MinGRU(5, 6)]).to(device), inputs(device=device)
    decoder = model.decoder(3)
    decoder.step(x[:, 0])
    before, start = [state.clone() for state in decoder.states], model.initial_state(3)
    decoder.reset(rows)
    for state, old, new in zip(decoder.states, before, start, strict=True):
        torch.testing.assert_close(state, torch.stack((new[0], old[1], new[2])), rtol=0, atol=0)


def test_decoding_goes_on_from_the_final_states_of_a_prompt(tolerance):
    model, x = ParaRNN([MinGRU(4, 5), Tanh(5)], return_hidden=True), inputs()
    whole, _ = model(x)
    _, finals = model(x[:, :8])
    decoder = model.decoder(3)
    decoder.load(finals)
    torch.testing.assert_close(decoded(decoder, x[:, 8:]), whole[:, 8:], **tolerance["states"])


def test_states_keep_no_graph_though_their_sources_have_one():
    model, x = ParaRNN(MinGRU(4, 5)), inputs()
    decoder = model.decoder(3)
    decoder.load(model.initial_state(3))
    assert not decoder.step(x[:, 0]).requires_grad
    assert not decoder.states[0].requires_grad


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_decoder_made_in_one_mode_serves_in_another(context):
    model, x = ParaRNN(MinGRU(4, 5)), inputs()
    with context():
        decoder = model.decoder(3)
        decoder.step(x[:, 0])
    with torch.inference_mode():
        sample = x[:, 1].clone()
        decoder.step(sample)
    decoder.step(sample)
    decoder.reset()
    assert not decoder.states[0].is_inference()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_outputs_of_half_precision_have_the_dtype_of_the_inputs(dtype):
    model, x = ParaRNN(Carried(4, 5)).to(dtype), inputs().to(dtype)
    decoder = model.decoder(3)
    outputs = decoded(decoder, x)
    assert (outputs.dtype, decoder.states[0].dtype) == (dtype, torch.float32)
    torch.testing.assert_close(outputs, model(x))


def test_a_model_that_left_half_precision_takes_and_gives_the_new_dtype():
    model, x = ParaRNN(Carried(4, 5)).to(torch.bfloat16), inputs().float()
    decoder = model.decoder(3)
    decoder.step(x[:, 0].bfloat16())
    model.float()
    before = [state.clone() for state in decoder.states]
    output = decoder.step(x[:, 1])
    assert output.dtype == decoder.input.dtype == torch.float32
    torch.testing.assert_close(output, model.step(x[:, 1], before)[0].detach())


def test_under_autocast_it_steps_as_the_model_does():
    model, x = ParaRNN([MinGRU(4, 5, dtype=torch.float32), Tanh(5, dtype=torch.float32)]), inputs().float()
    decoder = model.decoder(3)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        expected = model.step(x[:, 0])[0]
        torch.testing.assert_close(decoder.step(x[:, 0]), expected)


def test_it_tells_who_steps_and_that_nothing_is_recorded():
    decoder = ParaRNN([MinGRU(4, 5), DenseRNN(5, 4)]).decoder(3, graph="never")
    decoder.step(inputs()[:, 0])
    told = decoder.explain()
    assert "layer 0, MinGRU: " in told
    assert "layer 1, DenseRNN: torch" in told
    assert "no CUDA graph: graph='never'" in told


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_replayed():
    decoder = ParaRNN(MinGRU(4, 5)).cuda().decoder(3)
    decoder.step(inputs()[:, 0])
    assert "replayed as a CUDA graph" in decoder.explain()


@pytest.mark.gpu
def test_a_step_that_reads_values_on_the_host_is_not_recorded_and_still_right(tolerance):
    model, x = ParaRNN(Stubborn(4, 5)).cuda(), inputs(device="cuda")
    decoder = model.decoder(3)
    torch.testing.assert_close(decoded(decoder, x), model(x), **tolerance["states"])
    assert "cannot be recorded" in decoder.explain()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.randn(3, device="cuda").isfinite().all()
    with pytest.raises(BackendError, match="graph='always'"):
        model.decoder(3, graph="always").step(x[:, 0])


@pytest.mark.gpu
def test_a_decoder_can_be_part_of_a_graph_of_the_users(tolerance):
    model, x = ParaRNN(MinGRU(4, 5)).cuda(), inputs(device="cuda")
    decoder, graph = model.decoder(3), torch.cuda.CUDAGraph()
    decoder.step(x[:, 0])
    with torch.cuda.graph(graph):
        decoder.step()
    decoder.reset()
    outputs = []
    for sample in x.unbind(1):
        decoder.input.copy_(sample)
        graph.replay()
        outputs.append(decoder.output.clone())
    torch.testing.assert_close(torch.stack(outputs, dim=1), model(x), **tolerance["states"])


def test_a_step_that_is_not_channelwise_runs_as_written_and_says_why():
    decoder = ParaRNN(DenseRNN(4, 5)).decoder(3)
    decoder.step(inputs()[:, 0])
    assert "DenseRNN: torch" in decoder.explain()
    assert "channelwise" in decoder.explain()


def test_an_engine_that_is_named_and_cannot_step_raises_with_every_obstacle():
    decoder = ParaRNN(DenseRNN(4, 5), config=NewtonConfig(backend="native")).decoder(3)
    with pytest.raises(BackendError, match=r"(?s)cannot step DenseRNN; use .auto.:.*channelwise"):
        decoder.step(inputs()[:, 0])


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.float64), ShapeError, r"\(3, input\), got \(2, 4\)"),
        (torch.zeros(3, 1, 4, dtype=torch.float64), ShapeError, r"got \(3, 1, 4\)"),
        ("sample", ShapeError, "got str"),
        (torch.zeros(3, 4, dtype=torch.float64, requires_grad=True), DifferentiationError, "keeps no graph"),
    ],
    ids=["batch", "dimensions", "type", "gradient"],
)
def test_a_sample_that_cannot_be_decoded_is_refused(x, error, message):
    with pytest.raises(error, match=message):
        ParaRNN(MinGRU(4, 5)).decoder(3).step(x)


def test_the_first_step_needs_a_sample():
    with pytest.raises(ShapeError, match="first step"):
        ParaRNN(MinGRU(4, 5)).decoder(3).step()


def test_a_sample_of_another_dtype_than_the_first_is_refused():
    decoder = ParaRNN(MinGRU(4, 5)).decoder(3)
    decoder.step(inputs()[:, 0])
    with pytest.raises(DTypeError, match=r"torch\.float32, and was torch\.float64"):
        decoder.step(inputs()[:, 0].float())


@pytest.mark.parametrize("rows", [[3], [-1], torch.tensor([True, False])], ids=["beyond", "negative", "short mask"])
def test_rows_that_are_not_there_are_refused(rows):
    with pytest.raises(ShapeError, match="rows"):
        ParaRNN(MinGRU(4, 5)).decoder(3).reset(rows)


def test_states_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match=r"\(3, 5\)"):
        ParaRNN(MinGRU(4, 5)).decoder(3).load(torch.zeros(3, 4))


def test_a_model_that_changed_its_dtype_needs_a_new_decoder():
    model = ParaRNN(MinGRU(4, 5))
    decoder = model.decoder(3)
    model.float()
    with pytest.raises(ConfigError, match="make a new one"):
        decoder.step(inputs()[:, 0].float())


@pytest.mark.parametrize(
    ("batch", "graph", "message"),
    [(0, "auto", "at least 1"), (True, "auto", "at least 1"), (2, "sometimes", "graph must be"), (2, "always", "only CUDA devices")],
)
def test_options_that_cannot_work_are_refused(batch, graph, message):
    with pytest.raises(ConfigError, match=message):
        ParaRNN(MinGRU(4, 5)).decoder(batch, graph=graph)
