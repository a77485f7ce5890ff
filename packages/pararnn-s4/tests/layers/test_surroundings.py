"""What stands round the state space, against the formula written out with the parameters and a sum over lags."""

import pytest
import torch

ACTIVATIONS = {
    None: lambda x: x,
    "id": lambda x: x,
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
    "glu": lambda x: x[..., : x.shape[-1] // 2] / (1 + torch.exp(-x[..., x.shape[-1] // 2 :])),
}

SURROUNDINGS = {
    "bottleneck of 2": {"bottleneck": 2},
    "bottleneck of 4 with channels": {"bottleneck": 4, "channels": 3},
    "bottleneck without output linear": {"bottleneck": 2, "final_act": None},
    "gate of the width of the channels": {"gate": 2, "channels": 2, "gate_act": "gelu"},
    "gate wider than the channels": {"gate": 4, "channels": 2, "gate_act": "sigmoid"},
    "gate narrower than the channels": {"gate": 1, "channels": 3, "gate_act": "gelu", "mult_act": "tanh"},
    "gate with a gated activation": {"gate": 2, "gate_act": "glu", "final_act": "id"},
    "gate without output linear": {"gate": 3, "final_act": None},
    "gate of state-spaces": {"gate": 1, "bottleneck": 4, "gate_act": "gelu", "mult_act": "gelu", "final_act": "id"},
    "all": {"bottleneck": 2, "gate": 3, "channels": 2, "swap_channels": True, "activation": "glu", "gate_act": "sigmoid", "mult_act": "gelu"},
}


def linear(module, x):
    """The linear of `module`, which may stand before an activation."""
    weight, bias = module.parameters()
    return torch.einsum("...i,oi->...o", x, weight) + bias


def written_out(layer, x):
    """Outputs `(batch, length, d_output)`."""
    options = layer.options
    inner = x if options.bottleneck is None else linear(layer.input_linear, x)
    kernel, length = layer.ssm(x.shape[1]), x.shape[1]
    outputs = []
    for t in range(length):
        # (batch, channels, features): the skip, and all samples up to this one.
        y = layer.D * inner[:, t].unsqueeze(1)
        for lag in range(t + 1):
            y = y + kernel[..., lag] * inner[:, t - lag].unsqueeze(1)
        outputs.append((y.transpose(1, 2) if options.swap_channels else y).flatten(1))
    y = ACTIVATIONS[options.activation](torch.stack(outputs, 1))
    if options.gate is not None:
        width = options.gate * options.d_model
        y = y if y.shape[-1] == width else linear(layer.output_gate, y)
        y = ACTIVATIONS[options.mult_act](y * ACTIVATIONS[options.gate_act](linear(layer.input_gate, x)))
    return y if options.last_act is None else ACTIVATIONS[options.last_act](linear(layer.output_linear, y))


@pytest.mark.parametrize("options", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_outputs_and_gradients_are_those_of_the_formula(make, family, sequences, close, options):
    layer, x = make(family, **options), sequences(length=7).requires_grad_()
    inputs = [x, *layer.parameters()]
    y, expected = layer(x), written_out(layer, x)
    close(y, expected)
    gradients = torch.autograd.grad(y.square().sum(), inputs)
    for one, other in zip(gradients, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        close(one, other, atol=1e-10)
