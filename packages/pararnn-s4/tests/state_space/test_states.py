"""States: what goes on from one chunk to the next, by sequences and by single steps, for both kinds of models."""

import pytest
import torch

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM

FORMS = {
    "diagonal-zoh": (DiagonalSSM, {}),
    "diagonal-bilinear": (DiagonalSSM, {"disc": "bilinear", "channels": 2, "n_ssm": 2}),
    "diagonal-real": (DiagonalSSM, {"is_real": True, "init": "diag-real", "disc": "bilinear", "dt_max": 2.0}),
    "diagonal-untied": (DiagonalSSM, {"dt_tie": False}),
    "legs": (DPLRSSM, {}),
    "legt-two-channels": (DPLRSSM, {"init": "legt", "rank": 2, "channels": 2}),
    "fout-shared": (DPLRSSM, {"init": "fout", "n_ssm": 2}),
    "dplr-real": (DPLRSSM, {"is_real": True, "init": "dplr-real", "rank": 2}),
    "dplr-untied": (DPLRSSM, {"dt_tie": False}),
}
TOLERANCES = {torch.float64: {"rtol": 1e-11, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}


@pytest.fixture(params=FORMS)
def ssm(request):
    kind, options = FORMS[request.param]
    torch.manual_seed(0)
    return kind(4, d_state=8, dtype=torch.float64, **options)


def inputs(ssm, batch=3, length=37):
    return torch.randn(batch, 4, length, dtype=ssm.dtype), torch.randn(batch, 4, ssm.state_size, dtype=ssm.state_dtype)


def causal(kernel, u):
    """The convolution written out: (batch, channels, features, length)."""
    length = u.shape[-1]
    lags = torch.arange(length).unsqueeze(-1) - torch.arange(length)
    toeplitz = torch.where(lags >= 0, kernel[..., lags.clamp(min=0)], 0.0)
    return torch.einsum("chts,bhs->bcht", toeplitz, u)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 37, 128])
def test_kernel_response_and_last_state_equal_the_dense_recurrence(ssm, dense, batch, length):
    u, state = inputs(ssm, batch, length)
    outputs, states = dense(ssm).run(u, state)
    found = causal(ssm(length), u) + ssm.response(state, length)
    torch.testing.assert_close(found, outputs, **TOLERANCES[torch.float64])
    torch.testing.assert_close(ssm.advance(u, state), states[..., -1], **TOLERANCES[torch.float64])
    torch.testing.assert_close(ssm.advance(u), dense(ssm).run(u, torch.zeros_like(state))[1][..., -1], **TOLERANCES[torch.float64])


@pytest.mark.parametrize("mode", ["linear", "dense", "diagonal"])
@pytest.mark.parametrize("rate", [1.0, 1.7])
def test_steps_equal_the_dense_recurrence_in_every_mode(ssm, dense, mode, rate):
    u, state = inputs(ssm, length=11)
    outputs, states = dense(ssm, rate).run(u, state)
    decoder = ssm.decoder(mode, rate=rate)
    inner = decoder.enter(state)
    assert inner.shape == decoder.initial_state(3).shape
    assert inner.dtype == decoder.initial_state(3).dtype
    for index in range(11):
        y, inner = decoder.step(u[..., index], inner)
        y_module, state = ssm.step(u[..., index], state, rate=rate, mode=mode)
        for found in (y, y_module):
            torch.testing.assert_close(found, outputs[..., index], rtol=1e-8, atol=1e-8 if mode == "diagonal" else 1e-12)
        for found in (decoder.leave(inner), state):
            torch.testing.assert_close(found, states[..., index], rtol=1e-8, atol=1e-8 if mode == "diagonal" else 1e-12)


@pytest.mark.parametrize("cuts", [(32, 5), (1, 36), (10, 0, 27)])
def test_chunks_equal_the_whole_with_gradients_through_the_state(ssm, cuts):
    u, start = inputs(ssm)
    u.requires_grad_()
    start.requires_grad_()

    def whole():
        return causal(ssm(37), u) + ssm.response(start, 37), ssm.advance(u, start)

    def chunked():
        state, outputs = start, []
        for part in u.split(cuts, -1):
            if part.shape[-1]:
                outputs.append(causal(ssm(part.shape[-1]), part) + ssm.response(state, part.shape[-1]))
            state = ssm.advance(part, state)
        return torch.cat(outputs, -1), state

    wanted = [u, start, *ssm.parameters()]
    results = []
    for path in (whole, chunked):
        y, state = path()
        loss = (y * y).sum() + state.abs().square().sum()
        results.append([y, state, *torch.autograd.grad(loss, wanted)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)


def test_rows_of_different_lengths_equal_rows_alone(ssm):
    u, start = inputs(ssm, batch=5)
    lengths = torch.tensor([37, 0, 1, 20, 36])
    padded = torch.where(torch.arange(37) < lengths[:, None, None], u, torch.nan)
    for state in (start, None):
        found = ssm.advance(padded, state, lengths=lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = ssm.advance(u[row : row + 1, :, :length], None if state is None else state[row : row + 1])
            torch.testing.assert_close(found[row : row + 1], alone, **TOLERANCES[torch.float64])


def test_one_length_for_all_rows_may_be_an_int(ssm):
    u, state = inputs(ssm)
    torch.testing.assert_close(ssm.advance(u, state, lengths=20), ssm.advance(u[..., :20], state), **TOLERANCES[torch.float64])
    with pytest.raises(InputError, match="37"):
        ssm.advance(u, state, lengths=38)


def test_no_samples_leave_the_state_as_it_is(ssm):
    u, state = inputs(ssm, length=0)
    torch.testing.assert_close(ssm.advance(u, state), state, rtol=0, atol=0)
    torch.testing.assert_close(ssm.advance(u), ssm.initial_state(3), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["linear", "dense"])
def test_gradients_through_steps_equal_those_through_the_convolution(ssm, mode):
    u, start = inputs(ssm, length=9)
    start.requires_grad_()
    y = causal(ssm(9), u) + ssm.response(start, 9)
    wanted = [start, *ssm.parameters()]
    expected = torch.autograd.grad((y * y).sum(), wanted)
    state, outputs = start, []
    for sample in u.unbind(-1):
        out, state = ssm.step(sample, state, mode=mode)
        outputs.append(out)
    found = torch.autograd.grad(torch.stack(outputs, -1).square().sum(), wanted)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_single_precision_states_and_steps_keep_their_digits(form, dense):
    kind, options = FORMS[form]
    ssm = kind(4, d_state=8, **options)
    u, state = inputs(ssm, length=400)
    outputs, states = dense(ssm).run(u.double(), state)
    y = causal(ssm(400), u) + ssm.response(state, 400)
    scale = outputs.abs().max().item()
    torch.testing.assert_close(y, outputs.float(), rtol=0, atol=5e-6 * scale)
    last = ssm.advance(u, state)
    size = states.abs().max().item()
    torch.testing.assert_close(last, states[..., -1].to(last.dtype), rtol=0, atol=5e-6 * size)
    decoder = ssm.decoder("linear")
    for index in range(400):
        found, state = decoder.step(u[..., index], state)
        torch.testing.assert_close(found, outputs[..., index].float(), rtol=0, atol=1e-5 * scale)


def test_a_decoder_is_a_snapshot_and_a_step_is_not(ssm):
    u, state = inputs(ssm, length=1)
    decoder = ssm.decoder("dense")
    before, _ = decoder.step(u[..., 0], decoder.enter(state))
    with torch.no_grad():
        ssm.C.mul_(3)
    after, _ = decoder.step(u[..., 0], decoder.enter(state))
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    torch.testing.assert_close(ssm.step(u[..., 0], state, mode="dense")[0], 3 * before)
    assert not after.requires_grad


@pytest.mark.parametrize(("dtype", "d_state"), [(torch.float64, 32), (torch.float32, 16)])
def test_eigenvectors_that_cannot_be_trusted_are_refused_with_their_condition(dtype, d_state):
    ssm = DPLRSSM(1, d_state=d_state, dtype=dtype)
    with pytest.raises(ConfigError, match=r"cond\(V\) = .*'linear' or 'dense'"):
        ssm.decoder("diagonal")


@pytest.mark.parametrize(("dtype", "d_state", "limit"), [(torch.float64, 8, 1e-8), (torch.float64, 16, 1e-5), (torch.float32, 4, 1e-4)])
def test_eigenvectors_that_are_used_are_as_accurate_as_their_condition_promises(dtype, d_state, limit, dense, relative):
    ssm = DPLRSSM(1, d_state=d_state, dtype=dtype)
    decoder = ssm.decoder("diagonal")
    u = torch.randn(1, 1, 50, dtype=dtype)
    expected, _ = dense(ssm).run(u.double(), ssm.initial_state(1))
    state, outputs = decoder.initial_state(1), []
    for sample in u.unbind(-1):
        y, state = decoder.step(sample, state)
        outputs.append(y)
    assert relative(torch.stack(outputs, -1), expected) < limit


def test_eigenvectors_of_fout_can_be_trusted_in_single_precision():
    assert DPLRSSM(2, d_state=64, init="fout").decoder("diagonal").initial_state(1).shape == (1, 2, 64)


def test_a_step_refuses_an_unknown_mode_and_states_that_do_not_fit(ssm):
    u, state = inputs(ssm, length=1)
    with pytest.raises(ConfigError, match="'fast'"):
        ssm.step(u[..., 0], state, mode="fast")
    with pytest.raises(ShapeError, match="initial_state"):
        ssm.decoder().step(u[..., 0], state[:2])


def test_the_constants_for_cells_make_the_recurrence(ssm, dense):
    u, state = inputs(ssm, length=1)
    constants = ssm.discrete(1.0)
    if isinstance(ssm, DiagonalSSM):
        transition, drive, output = constants
        following = transition * state + drive * u
    else:
        transition, left, right, drive, output = constants
        weights = torch.einsum("rhn,bhn->rbh", right, state)
        weights = weights if ssm.is_real else weights.real.to(weights.dtype)
        following = transition * state - torch.einsum("rhn,rbh->bhn", left, weights) + drive * u
    y = torch.einsum("chn,bhn->bch", output, following)
    outputs, states = dense(ssm).run(u, state)
    torch.testing.assert_close(following, states[..., 0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(y if ssm.is_real else 2 * y.real, outputs[..., 0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", ["diagonal-zoh", "legt-two-channels"])
def test_states_and_steps_compile_to_one_graph(form):
    kind, options = FORMS[form]
    ssm = kind(4, d_state=8, **options)
    _, state = inputs(ssm)
    lengths = torch.tensor([5, 0, 20])

    def everything(u):
        return ssm.response(state, u.shape[-1]), ssm.advance(u, state, lengths=lengths), *ssm.step(u[..., 0], state)

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for length in (20, 33):
        u, _ = inputs(ssm, length=length)
        torch.testing.assert_close(compiled(u), everything(u), rtol=1e-5, atol=1e-5)
