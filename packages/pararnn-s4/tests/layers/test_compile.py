"""Layers traced as one graph."""

import pytest
import torch

# The compiler's own notices, such as that it generates no code for complex operators.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("s4d", {}),
        ("s4d", {"bidirectional": True, "gate": 2}),
        ("s4d", {"transposed": True, "channels": 2, "dropout": 0.1}),
        ("s4d", {"method": "scan"}),
        ("s4d-real", {}),
        ("s4d-bilinear", {}),
        ("s4", {}),
        ("s4", {"method": "scan"}),
        ("s4-cauchy", {"channels": 2}),
    ],
    ids=str,
)
def test_a_layer_is_one_graph_with_its_gradients(make, sequences, close, kind, options):
    layer, x = make(kind, **options).eval(), sequences()
    x = x.transpose(1, 2) if options.get("transposed") else x
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, traced = layer(x), compiled(x)
    close(traced, y)
    expected = torch.autograd.grad(y.square().sum(), layer.parameters())
    for one, other in zip(torch.autograd.grad(traced.square().sum(), layer.parameters()), expected, strict=True):
        close(one, other, atol=1e-10)


def test_states_lengths_and_rates_are_traced_too(make, family, sequences, random_state, close):
    layer, x = make(family), sequences()
    state, lengths = random_state(layer), torch.tensor([3, 19, 7])
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    actual = compiled(x, state, lengths=lengths, rate=2.0, return_state=True)
    for one, other in zip(actual, layer(x, state, lengths=lengths, rate=2.0, return_state=True), strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("s4d", {}), ("s4d", {"method": "scan"}), ("s4d-bilinear", {"bidirectional": True, "l_max": 4}), ("s4", {}), ("s4-cauchy", {})],
    ids=str,
)
def test_lengths_and_rates_may_vary_between_calls(make, kind, options, sequences, close):
    layer = make(kind, **options)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for length in (5, 9, 16):
        close(compiled(sequences(length)), layer(sequences(length)))
    for rate in (2.0, 0.5):
        close(compiled(sequences(9), rate=rate), layer(sequences(9), rate=rate))


def test_batches_and_states_may_vary_between_calls(make, family, sequences, random_state, close):
    layer = make(family)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for batch in (2, 3):
        x, state = sequences(9, batch), random_state(layer, batch)
        for one, other in zip(compiled(x, state, return_state=True), layer(x, state, return_state=True), strict=True):
            close(one, other)


def test_a_step_is_one_graph(make, family, sequences, random_state, close):
    layer, x = make(family), sequences()[:, 0]
    state = random_state(layer)
    for one, other in zip(torch.compile(layer.step, fullgraph=True, backend="aot_eager")(x, state), layer.step(x, state), strict=True):
        close(one, other)


def test_a_step_of_a_decoder_is_one_graph(make, family, sequences, random_state, close):
    decoder, x = make(family).eval().decoder(), sequences()[:, 0]
    state = random_state(make(family))
    for one, other in zip(torch.compile(decoder.step, fullgraph=True, backend="eager")(x, state), decoder.step(x, state), strict=True):
        close(one, other)
