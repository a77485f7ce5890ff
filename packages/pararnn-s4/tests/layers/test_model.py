"""The stacked model: pooling, padding, states, steps, and that it learns."""

import copy

import pytest
import torch
import torch.nn.functional as F

from pararnn.errors import BackendError, ConfigError, DTypeError, InputError, ShapeError
from pararnn_s4 import S4Model, param_groups

VARIANTS = {
    "s4d": {},
    "s4": {"layer": "s4"},
    "prenorm": {"prenorm": True},
    "batch norm": {"norm": "batch", "prenorm": True},
    "rms norm": {"norm": "rms"},
    "no norm": {"norm": None},
    "gate": {"gate": 2, "bottleneck": 2},
}


def build(d_input=3, d_output=5, d_model=8, n_layers=2, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return S4Model(d_input, d_output, d_model, n_layers, d_state=8, dt_min=0.02, dt_max=0.5, dtype=dtype, **options)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def variant(request):
    return dict(request.param)


@pytest.fixture(params=["mean", "last", None], ids="pool {}".format)
def pool(request):
    return request.param


@pytest.fixture
def x(sequences):
    return sequences(features=3)


def test_outputs_have_the_promised_shapes(variant, pool, x):
    y = build(pool=pool, **variant)(x)
    assert y.shape == ((3, 5) if pool else (3, 19, 5))


def test_chunks_give_the_outputs_of_the_whole(variant, pool, x, close):
    model = build(pool=pool, **variant).eval()
    whole, last = model(x, return_state=True)
    outputs, state = [], None
    for chunk in x.split((5, 1, 0, 13), 1):
        y, state = model(chunk, state, return_state=True)
        outputs.append(y)
    close(outputs[-1] if pool else torch.cat(outputs, 1), whole)
    for one, other in zip(state.layers, last.layers, strict=True):
        close(one, other)


def test_steps_give_the_outputs_of_the_whole(variant, pool, x, close):
    model = build(pool=pool, **variant).eval()
    decoder = model.decoder("dense")
    whole = model(x)
    state, decoded = model.init_state(3), decoder.init_state(3)
    for t, sample in enumerate(x.unbind(1)):
        y, state = model.step(sample, state)
        fast, decoded = decoder.step(sample, decoded)
        close(y, model(x[:, : t + 1]) if pool else whole[:, t])
        close(fast, y)


def test_steps_without_a_state_start_at_the_first_one(variant, pool, x, close):
    model = build(pool=pool, **variant).eval()
    for stepping in (model, model.decoder()):
        (y, state), (expected, after) = stepping.step(x[:, 0]), stepping.step(x[:, 0], stepping.init_state(3))
        close(y, expected, atol=0)
        assert state.seen.tolist() == after.seen.tolist()
        close(stepping.step(x[:, 1], state)[0], stepping.step(x[:, 1], after)[0], atol=0)


def test_padding_enters_nothing(variant, pool, x, close):
    model = build(pool=pool, **variant).eval()
    lengths = torch.tensor([4, 19, 11])
    for row, length in enumerate(lengths.tolist()):
        x[row, length:] = float("nan")
    y, state = model(x, lengths=lengths, return_state=True)
    for row, length in enumerate(lengths.tolist()):
        alone, after = model(x[row : row + 1, :length], return_state=True)
        close(y[row : row + 1] if pool else y[row : row + 1, :length], alone)
        for one, other in zip(state.layers, after.layers, strict=True):
            close(one[row : row + 1], other)


@pytest.mark.parametrize("padding", [float("nan"), float("inf")], ids="padding {}".format)
def test_padding_without_numbers_leaves_gradients_and_outputs_finite(variant, pool, x, close, padding):
    model, lengths = build(pool=pool, **variant), torch.tensor([4, 19, 11])
    gradients = []
    for value in (0.0, padding):
        for row, length in enumerate(lengths.tolist()):
            x[row, length:] = value
        y = model(x, lengths=lengths)
        assert y.isfinite().all()
        gradients.append(torch.autograd.grad(y.square().sum(), list(model.parameters())))
    for one, other in zip(*gradients, strict=True):
        close(one, other, atol=0)


def test_states_count_the_samples_so_far(pool, x):
    model = build(pool=pool)
    _, state = model(x, lengths=[4, 19, 0], return_state=True)
    assert state.seen.tolist() == [4, 19, 0]
    _, state = model(x, state, return_state=True)
    assert model.eval().step(x[:, 0], state)[1].seen.tolist() == [24, 39, 20]


def test_padding_leaves_batch_statistics_alone(x, close):
    model, other = build(norm="batch", n_layers=1), build(norm="batch", n_layers=1)
    flat = x[:1].clone()
    padded = torch.cat((flat, torch.full((1, 6, 3), 50.0, dtype=torch.float64)), 1)
    close(model(padded, lengths=19), other(flat))
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        close(one, two)


def test_a_bidirectional_model_respects_padding(pool, x, close):
    model = build(pool=pool, bidirectional=True).eval()
    y = model(x, lengths=torch.tensor([4, 19, 11]))
    alone = model(x[:1, :4])
    close(y[:1] if pool else y[:1, :4], alone)


def test_rows_without_samples_are_pooled_to_nothing(x, close):
    for pool in ("mean", "last"):
        model = build(pool=pool)
        close(model(x, lengths=torch.tensor([0, 3, 4]))[0], model.head.bias)


def test_a_rate_reaches_every_layer(pool, x, close):
    model = build(pool=pool)
    y = model(x, rate=2.0)
    with torch.no_grad():
        for block in model.blocks:
            block.layer.ssm.inv_dt.add_(torch.tensor(2.0, dtype=torch.float64).log())
    close(model(x), y)


def test_a_decoder_is_a_snapshot(x, close):
    model = build().eval()
    decoder, y = model.decoder(), model(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = decoder.init_state(3)
    out = None
    for sample in x.unbind(1):
        out, state = decoder.step(sample, state)
    close(out, y)
    close(decoder.leave(decoder.enter(model.init_state(3))).layers[0], model.init_state(3).layers[0])


def test_dropout_is_drawn_for_whole_sequences(x):
    model = build(dropout=0.5, n_layers=1, pool=None, norm=None)
    model.head = torch.nn.Identity()
    difference = model(x) - model.encoder(x)
    dropped = difference == 0
    assert dropped.any()
    assert (dropped == dropped[:, :1]).all()
    with pytest.raises(ConfigError, match=r"eval\(\)"):
        model.step(x[:, 0], model.init_state(3))


def test_batch_statistics_cannot_be_taken_in_a_step(x):
    model = build(norm="batch")
    with pytest.raises(ConfigError, match=r"eval\(\)"):
        model.step(x[:, 0], model.init_state(3))


def test_half_precision_and_autocast_pool_in_single(x):
    model = build(dtype=torch.float32)
    expected = model(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, state = model(x.float(), return_state=True)
    torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.05)
    assert state.summary.dtype == torch.float32
    half, state = copy.deepcopy(model).bfloat16()(x.bfloat16(), return_state=True)
    torch.testing.assert_close(half.float(), expected, rtol=0.1, atol=0.1)
    assert (half.dtype, state.summary.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_model_is_one_graph(x, close):
    torch._dynamo.reset()
    model = build(prenorm=True, pool="last").eval()
    close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


def test_it_learns_to_tell_slow_from_fast():
    torch.manual_seed(0)
    time = torch.arange(48.0)
    labels = torch.arange(60) % 2
    waves = torch.sin(time * (0.2 + 0.2 * labels.unsqueeze(1)) + 6.28 * torch.rand(60, 1)).unsqueeze(-1)
    model = S4Model(1, 2, 16, 1, d_state=16, dt_min=0.02, dt_max=0.5)
    optimizer = torch.optim.AdamW(param_groups(model, lr=1e-2, ssm_lr=1e-2), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(waves[:40]), labels[:40]).backward()
        optimizer.step()
    assert (model(waves[40:]).argmax(-1) == labels[40:]).float().mean() > 0.9


def test_it_learns_a_regression_at_every_sample():
    torch.manual_seed(0)
    x = torch.randn(24, 40, 1)
    delayed = F.pad(x, (0, 0, 3, 0))[:, :-3]
    model = S4Model(1, 1, 16, 1, d_state=16, dt_min=0.1, dt_max=0.5, pool=None, norm=None, activation=None, final_act="id")
    optimizer = torch.optim.AdamW(param_groups(model, lr=1e-2, ssm_lr=1e-2), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), delayed)
        loss.backward()
        optimizer.step()
    assert loss < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "s5"}, "'s4d' or 's4'"),
        ({"pool": "max"}, "pool='max'"),
        ({"norm": "group"}, "norm='group'"),
        ({"n_layers": 0}, "n_layers"),
        ({"n_layers": 2.0}, "n_layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": "a"}, r"dropout must lie in \[0, 1\), got 'a'"),
        ({"dtype": torch.int32}, r"parameters cannot be torch\.int32"),
        ({"dtype": torch.cfloat}, r"parameters cannot be torch\.complex64"),
        ({"final_act": None, "channels": 2}, "8 features in and out"),
        ({"transposed": True}, "transposed=True"),
        ({"tie_drop": True}, "S4Model has no option 'tie_drop'; did you mean 'tie_dropout'"),
        ({"drop_kernl": 0.1}, "S4Model has no option 'drop_kernl'; did you mean 'drop_kernel'"),
        ({"layer": "s4", "P_scale": 0.1}, "init='legs' of S4Model has no use for P_scale"),
        ({"backend": "cud"}, "'cuda'"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises((ConfigError, BackendError, DTypeError), match=message):
        build(**options)


def test_inputs_that_do_not_fit_are_named(x):
    model = build()
    with pytest.raises(ShapeError, match=r"\(batch, length, d_input\) with d_input=3, got \(3, 3, 19\)"):
        model(x.transpose(1, 2))
    with pytest.raises(DTypeError, match="float32"):
        model(x.float())
    with pytest.raises(ConfigError, match="rate"):
        model(x, rate=0.0)


def test_plain_numbers_may_come_from_elsewhere(numpy, x, close):
    model = build()
    for rate in (numpy.float32(2), torch.tensor(2), 2):
        close(model(x, rate=rate), model(x, rate=2.0), atol=0)
    assert build(n_layers=numpy.int64(1), d_output=torch.tensor(5)).head.out_features == 5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda state: state.layers, ShapeError, r"ModelState of 2 layers, got tuple; .*ModelState\(\*state\)"),
        (tuple, ShapeError, r"ModelState of 2 layers, got tuple"),
        (lambda state: state._replace(layers=state.layers[:1]), ShapeError, "ModelState of 2 layers, got one of 1"),
        (
            lambda state: state._replace(layers=tuple(part[:1] for part in state.layers)),
            ShapeError,
            r"the state must be \(3, 8, 4\).*got \(1, 8, 4\)",
        ),
        (lambda state: state._replace(summary=state.summary[:1]), ShapeError, r"state\.summary must be \(3, 8\).*got \(1, 8\)"),
        (lambda state: state._replace(summary=state.summary.float()), DTypeError, r"state\.summary must be .*float64, got .*float32"),
        (lambda state: state._replace(seen=state.seen[:1]), ShapeError, r"state\.seen must be \(3,\).*got \(1,\)"),
        (lambda state: state._replace(seen=state.seen.double()), DTypeError, r"state\.seen must be .*int64"),
    ],
    ids=["layers alone", "plain tuple", "other model", "batch of layers", "batch of summary", "dtype of summary", "batch of count", "dtype of count"],
)
def test_states_that_do_not_fit_are_named(x, change, error, message):
    model = build().eval()
    state = change(model.init_state(3))
    for call in (lambda: model(x, state), lambda: model.step(x[:, 0], state)):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(("batch", "length", "lengths"), [(1, 1, None), (2, 3, [1, 0]), (2, 3, [0, 0]), (1, 0, None)], ids=str)
def test_statistics_of_fewer_than_two_samples_are_refused(batch, length, lengths):
    model, x = build(norm="batch"), torch.randn(batch, length, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=rf"there are {sum(lengths or [length])}; call eval"):
        model(x, lengths=lengths)
    assert model.eval()(x, lengths=lengths).isfinite().all()


@pytest.mark.parametrize("batch", [-1, 2.0, True, "2"])
def test_batches_that_are_no_counts_are_refused(batch):
    model = build()
    for holder in (model, model.decoder(), model.blocks[0].layer, model.blocks[0].layer.decoder()):
        with pytest.raises(ConfigError, match="batch must be an int of at least 0"):
            holder.init_state(batch)


def test_a_count_of_numpy_is_a_batch(numpy):
    assert build().init_state(numpy.int64(0)).seen.shape == (0,)


def test_a_bidirectional_model_has_no_steps(x):
    model = build(bidirectional=True)
    for call in (lambda: model.step(x[:, 0]), lambda: model.init_state(3), lambda: model.decoder()):
        with pytest.raises(ConfigError, match="bidirectional=False"):
            call()


def test_lengths_may_be_a_list(x, close):
    model = build()
    close(model(x, lengths=[4, 19, 11]), model(x, lengths=torch.tensor([4, 19, 11])), atol=0)
