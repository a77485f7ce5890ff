"""What must be equal whatever the parameters: convolution and steps, chunks and whole, kernel and impulse response."""

import pytest
import torch

from pararnn import ParaRNN


def test_steps_give_the_outputs_of_the_convolution(make, kind, sequences, walk, close):
    layer, x = make(kind), sequences()
    outputs, state = walk(layer, x, layer.init_state(3))
    y, after = layer(x, return_state=True)
    close(outputs, y)
    close(state, after)


def test_steps_agree_with_whatever_stands_round_the_state_space(make, family, surroundings, sequences, walk, close):
    layer, x = make(family, **surroundings), sequences()
    y = layer(x)
    assert y.shape[-1] == layer.d_output
    close(walk(layer, x, layer.init_state(3))[0], y)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 1.7])
@pytest.mark.parametrize("mode", ["linear", "dense", "diagonal"])
def test_every_form_of_a_step_agrees_at_every_rate(make, family, sequences, walk, close, mode, rate):
    layer, x = make(family, d_state=4), sequences()
    close(walk(layer, x, layer.init_state(3), rate=rate, mode=mode)[0], layer(x, rate=rate), atol=1e-9 if mode == "diagonal" else 1e-12)


@pytest.mark.parametrize("mode", ["linear", "dense", "diagonal"])
def test_a_decoder_continues_a_prompt(make, family, sequences, walk, close, mode):
    layer, x = make(family, d_state=4).eval(), sequences()
    whole, last = layer(x, return_state=True)
    _, state = layer(x[:, :11], return_state=True)
    decoder = layer.decoder(mode)
    outputs, after = walk(decoder, x[:, 11:], decoder.enter(state))
    close(outputs, whole[:, 11:], atol=1e-9)
    close(decoder.leave(after), last, atol=1e-9)


def test_a_decoder_starts_from_nothing(make, kind, sequences, walk, close):
    layer, x = make(kind).eval(), sequences()
    decoder = layer.decoder()
    close(walk(decoder, x, decoder.init_state(3))[0], layer(x))


def test_steps_without_a_state_start_at_the_first_one(make, kind, sequences, close):
    layer, x = make(kind).eval(), sequences()
    for stepping in (layer, layer.decoder()):
        for one, other in zip(stepping.step(x[:, 0]), stepping.step(x[:, 0], stepping.init_state(3)), strict=True):
            close(one, other, atol=0)
        close(stepping.step(x[:, 0], None)[0], layer(x)[:, 0])


def test_a_random_state_acts_alike_in_convolution_and_steps(make, kind, sequences, random_state, walk, close):
    layer, x = make(kind), sequences()
    state = random_state(layer)
    y, after = layer(x, state, return_state=True)
    outputs, last = walk(layer, x, state)
    close(outputs, y)
    close(after, last)


@pytest.mark.parametrize("lengths", [(32, 32), (1, 5, 58), (63, 1), (0, 64)], ids=str)
def test_chunks_that_hand_on_their_state_equal_the_whole(make, kind, sequences, random_state, close, lengths):
    layer, x = make(kind), sequences(length=64)
    start = random_state(layer)
    whole, last = layer(x, start, return_state=True)
    outputs, state = [], start
    for chunk in x.split(lengths, 1):
        y, state = layer(chunk, state, return_state=True)
        outputs.append(y)
    close(torch.cat(outputs, 1), whole)
    close(state, last)


def test_gradients_flow_through_chunks_as_through_the_whole(make, kind, sequences, random_state, close):
    layer, x = make(kind), sequences(length=24).requires_grad_()
    start = random_state(layer).requires_grad_()
    inputs = [x, start, *layer.parameters()]
    whole = torch.autograd.grad(layer(x, start).square().sum(), inputs, allow_unused=True)
    first, state = layer(x[:, :10], start, return_state=True)
    chunked = torch.autograd.grad(first.square().sum() + layer(x[:, 10:], state).square().sum(), inputs, allow_unused=True)
    for one, other in zip(whole, chunked, strict=True):
        close(other, one, atol=1e-10)


def test_gradients_flow_through_steps_as_through_the_convolution(make, family, sequences, random_state, walk, close):
    layer, x = make(family, gate=2, channels=2, swap_channels=True), sequences(length=9).requires_grad_()
    start = random_state(layer).requires_grad_()
    inputs = [x, start, *layer.parameters()]
    whole = torch.autograd.grad(layer(x, start).square().sum(), inputs)
    stepped = torch.autograd.grad(walk(layer, x, start)[0].square().sum(), inputs)
    for one, other in zip(whole, stepped, strict=True):
        close(other, one, atol=1e-10)


def test_later_samples_do_not_change_earlier_outputs(make, kind, sequences, close):
    layer, x = make(kind), sequences(length=64)
    changed = torch.cat((x[:, :40], sequences(length=24, seed=9)), 1)
    close(layer(changed)[:, :40], layer(x)[:, :40], atol=4e-15)


def test_the_impulse_response_is_the_kernel_and_the_skip(make, kind, close):
    layer = make(kind, activation=None, final_act=None, channels=2)
    impulse = torch.zeros(1, 30, 8, dtype=torch.float64)
    impulse[:, 0] = 1
    expected = layer.ssm(30).detach().clone()
    expected[..., 0] += layer.D
    close(layer(impulse)[0].unflatten(-1, (2, 8)).permute(1, 2, 0), expected, atol=1e-13)


def test_without_activations_it_is_linear_and_invariant_in_time(make, kind, sequences, close):
    layer = make(kind, activation=None, final_act=None)
    x, other = sequences(), sequences(seed=5)
    close(layer(2 * x - 3 * other), 2 * layer(x) - 3 * layer(other), atol=1e-13)
    late = torch.cat((torch.zeros(3, 4, 8, dtype=torch.float64), x), 1)
    close(layer(late)[:, 4:], layer(x), atol=1e-13)


@pytest.mark.parametrize("bidirectional", [True, "exclusive"])
def test_a_bidirectional_layer_is_a_layer_in_each_direction(make, family, sequences, close, bidirectional):
    layer, x = make(family, bidirectional=bidirectional, activation=None, final_act=None), sequences()
    kernel = layer.ssm(19)
    expected = layer.D * x
    for t in range(19):
        for s in range(19):
            if s <= t:
                expected[:, t] += kernel[0, :, t - s] * x[:, s]
            if bidirectional == "exclusive" and s > t:
                expected[:, t] += kernel[1, :, s - t - 1] * x[:, s]
            if bidirectional is True and s >= t:
                expected[:, t] += kernel[1, :, s - t] * x[:, s]
    close(layer(x), expected)


def test_a_bidirectional_layer_with_swapped_kernels_runs_backwards(make, family, sequences, close):
    layer, x = make(family, bidirectional=True), sequences()
    y = layer(x)
    with torch.no_grad():
        layer.ssm.C.copy_(layer.ssm.C.flip(0))
    close(layer(x.flip(1)).flip(1), y)


def test_transposed_sequences_give_transposed_outputs(make, family, sequences, close):
    layer, transposed, x = make(family, gate=2), make(family, gate=2, transposed=True), sequences()
    y, state = layer(x, return_state=True)
    y_transposed, state_transposed = transposed(x.transpose(1, 2), return_state=True)
    close(y_transposed, y.transpose(1, 2))
    close(state_transposed, state)


@pytest.mark.parametrize("rate", [0.5, 2.0, 1.5])
def test_a_rate_is_the_layer_with_other_time_steps(make, kind, sequences, close, rate):
    layer, x = make(kind), sequences()
    y = layer(x, rate=rate)
    with torch.no_grad():
        layer.ssm.inv_dt.add_(torch.tensor(rate, dtype=torch.float64).log())
    close(layer(x), y)


def test_calls_leave_nothing_behind(make, kind, sequences, close):
    layer, x = make(kind), sequences(length=40)
    y = layer(x)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(x[:, :7], rate=2.0)
    layer(x[:, :13], layer.init_state(3), return_state=True)[0].sum().backward()
    layer.step(x[:, 0], layer.init_state(3), mode="dense")
    layer.decoder()
    close(layer(x), y, atol=0)
    for name, tensor in layer.state_dict().items():
        close(tensor, before[name], atol=0)


def test_training_between_calls_makes_nothing_stale(make, kind, sequences, walk, close):
    layer, x = make(kind), sequences()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        close(walk(layer, x, layer.init_state(3))[0], layer(x))


def test_the_first_outputs_do_not_depend_on_the_length(make, kind, sequences, close):
    layer, x = make(kind), sequences(length=100)
    whole = layer(x)
    for length in (1, 2, 63, 64, 65):
        close(layer(x[:, :length]), whole[:, :length])


@pytest.mark.parametrize("options", [{}, {"channels": 2, "swap_channels": True, "gate": 2}, {"activation": "glu", "bottleneck": 2}], ids=str)
def test_a_scan_gives_the_outputs_states_and_gradients_of_the_convolution(make, family, sequences, random_state, close, options):
    x, lengths = sequences(length=70).requires_grad_(), torch.tensor([3, 70, 41])
    convolution, scan = make(family, method="convolution", **options), make(family, method="scan", **options)
    start = random_state(scan).requires_grad_()
    y, state = convolution(x, start, return_state=True)
    scanned, after = scan(x, start, return_state=True)
    close(scanned, y)
    close(after, state)
    expected = torch.autograd.grad(y.square().sum(), [x, start, *convolution.parameters()])
    for one, other in zip(torch.autograd.grad(scanned.square().sum(), [x, start, *scan.parameters()]), expected, strict=True):
        close(one, other, atol=1e-10)
    close(scan(x, start, lengths=lengths, return_state=True)[1], convolution(x, start, lengths=lengths, return_state=True)[1])
    close(scan(x, rate=1.7), convolution(x, rate=1.7))


def test_the_cell_of_a_layer_shares_its_parameters(make, kind, sequences, close):
    layer, x = make(kind, activation=None, final_act=None, channels=2), sequences()
    rnn = ParaRNN(layer.cell())
    close(rnn(x), layer(x))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.9)
    close(rnn(x), layer(x))


def test_a_layer_can_be_mapped_over_copies_of_its_parameters(make, family, sequences, close):
    layer, x = make(family), sequences()

    def loss(parameters, row):
        return torch.func.functional_call(layer, parameters, (row.unsqueeze(0),)).square().sum()

    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for row in range(3):
        alone = torch.func.grad(loss)(parameters, x[row])
        for name, gradient in alone.items():
            close(each[name][row], gradient, atol=1e-10)
