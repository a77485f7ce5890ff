import os
import signal

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import StreamError, memmap_stream, sequences, train


class KilledError(Exception):
    """What a test throws into a run."""


def killed_after(items, count):
    for number, item in enumerate(items):
        if number == count:
            raise KilledError
        yield item


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.pt"


@pytest.mark.parametrize("at", [7, 12, 20], ids="killed after {}".format)
def test_a_killed_run_goes_on_bit_for_bit(rule, at, make_learner, make_stream, assert_same, path):
    with pytest.raises(KilledError):
        train(make_learner(rule), killed_after(make_stream(30), at), checkpoint=path, checkpoint_every=5)
    resumed, straight = make_learner(rule, seed=3), make_learner(rule)
    report = train(resumed, make_stream(30), checkpoint=path, checkpoint_every=5)
    whole = train(straight, make_stream(30))
    assert_same(resumed, straight)
    assert report.resumed_at == at // 5 * 5
    assert (report.steps, report.sequences, report.mean_loss, report.loss_curve) == (30, 1, whole.mean_loss, whole.loss_curve)


def test_a_killed_run_over_sequences_goes_on_inside_one(rule, make_learner, make_stream, assert_same, path):
    def loader():
        for number in range(5):
            yield tuple(torch.stack(part, 1) for part in zip(*make_stream(6, seed=number), strict=True))

    with pytest.raises(KilledError):
        train(make_learner(rule), sequences(killed_after(loader(), 3)), checkpoint=path, checkpoint_every=7)
    resumed, straight = make_learner(rule, seed=3), make_learner(rule)
    report = train(resumed, sequences(loader()), checkpoint=path)
    train(straight, sequences(loader()))
    assert_same(resumed, straight)
    assert (report.resumed_at, report.steps, report.sequences) == (14, 30, 5)


def test_a_killed_run_over_a_file_goes_to_its_place(make_learner, assert_same, path):
    rows = torch.randn(61, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def stop(step, result):
        if step == 11:
            raise KilledError

    source = {"batch": 3, "block": 4, "dtype": torch.float64}
    with pytest.raises(KilledError):
        train(make_learner(), memmap_stream(rows, **source), checkpoint=path, checkpoint_every=4, on_step=stop)
    resumed, straight = make_learner(seed=3), make_learner()
    assert train(resumed, memmap_stream(rows, **source), checkpoint=path).resumed_at == 8
    train(straight, memmap_stream(rows, **source))
    assert_same(resumed, straight)


def test_a_run_that_steps_ended_goes_on_as_if_it_had_not(rule, make_learner, make_stream, assert_same, path):
    train(make_learner(rule), make_stream(30), steps=13, checkpoint=path)
    resumed, straight = make_learner(rule, seed=3), make_learner(rule)
    train(resumed, make_stream(30), checkpoint=path)
    train(straight, make_stream(30))
    assert_same(resumed, straight)


def test_a_finished_run_is_not_run_again(make_learner, make_stream, assert_same, path):
    first, again = make_learner("TBPTT"), make_learner("TBPTT", seed=3)
    done = train(first, make_stream(30), steps=10, checkpoint=path)
    report = train(again, make_stream(30), steps=10, checkpoint=path)
    assert_same(first, again)
    assert (report.steps, report.resumed_at, report.mean_loss) == (10, 10, done.mean_loss)


def test_resume_may_be_declined(make_learner, make_stream, assert_same, path):
    train(make_learner(), make_stream(10), checkpoint=path)
    anew, other = make_learner(seed=3), make_learner(seed=3)
    assert train(anew, make_stream(10), checkpoint=path, resume=False).resumed_at == 0
    train(other, make_stream(10))
    assert_same(anew, other)


@pytest.fixture
def foreground():
    """Ctrl-C as in a terminal; where tests run in the background the shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
def test_ctrl_c_in_the_middle_of_a_step_saves_after_it(make_learner, make_stream, assert_same, path, monkeypatch):
    learner = make_learner()
    step = learner.step

    def interrupted(*arguments):
        if learner.steps == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(learner, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(learner, make_stream(30), checkpoint=path)
    assert learner.steps == 14
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed, straight = make_learner(seed=3), make_learner()
    assert train(resumed, make_stream(30), checkpoint=path).resumed_at == 14
    train(straight, make_stream(30))
    assert_same(resumed, straight)


@pytest.mark.usefixtures("foreground")
def test_ctrl_c_while_data_are_waited_for_interrupts_at_once(make_learner, make_stream, path):
    def waiting():
        yield from make_stream(9)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal should have come")

    with pytest.raises(KeyboardInterrupt):
        train(make_learner(), waiting(), checkpoint=path)
    assert train(make_learner(), make_stream(9), checkpoint=path).resumed_at == 9


@pytest.mark.usefixtures("foreground")
def test_a_second_ctrl_c_does_not_wait_and_saves_nothing_half_done(make_learner, make_stream, path, monkeypatch):
    learner = make_learner()

    def stuck(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second signal should have come")

    monkeypatch.setattr(learner, "step", stuck)
    with pytest.raises(KeyboardInterrupt):
        train(learner, make_stream(9), checkpoint=path)
    assert not path.exists()


def test_somebody_elses_handler_stays(make_learner, make_stream):
    def handler(number, frame):
        pass

    before = signal.signal(signal.SIGINT, handler)
    try:
        train(make_learner(), make_stream(3), on_step=lambda step, result: os.kill(os.getpid(), signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def state_of(learner):
    state = learner.state_dict()
    return {**state["network"], **state["tensors"]}, state["steps"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rule": "TBPTT1"}, "'TBPTT1'.*'COLA'"),
        ({"momentum": 0.0, "adam": True}, "'Adam'"),
    ],
    ids=["rule", "optimizer"],
)
def test_a_checkpoint_of_something_else_changes_nothing(other, words, make_learner, make_stream, path):
    adam = other.pop("adam", False)
    writer = make_learner(**other)
    if adam:
        writer.optimizer = torch.optim.Adam(writer.network.parameters())
    train(writer, make_stream(5), checkpoint=path)
    learner = make_learner(seed=3)
    train(learner, make_stream(3))
    before = state_of(learner)
    with pytest.raises(StreamError, match=words):
        train(learner, make_stream(5), checkpoint=path)
    torch.testing.assert_close(state_of(learner), before, rtol=0, atol=0)


def test_a_checkpoint_of_other_data_is_refused(make_learner, make_stream, path):
    train(make_learner(), make_stream(5), checkpoint=path)
    with pytest.raises(StreamError, match="written in a run over steps, these data are rows of an array"):
        train(make_learner(), memmap_stream(torch.zeros(50, 2, dtype=torch.float64), batch=3), checkpoint=path)


def broken_halves(path):
    path.write_bytes(path.read_bytes()[:-200])


def broken_text(path):
    path.write_text("nothing that torch could read")


def broken_empty(path):
    path.write_bytes(b"")


def broken_other(path):
    torch.save({"weights": torch.zeros(3)}, path)


def broken_inside(path):
    content = torch.load(path)
    del content["learner"]["tensors"]["state.0.0"], content["learner"]["gradients"]
    torch.save(content, path)


def broken_code(path):
    torch.save(KilledError, path)


@pytest.mark.parametrize("damage", [broken_halves, broken_text, broken_empty, broken_other, broken_inside, broken_code])
def test_a_broken_checkpoint_changes_nothing(damage, make_learner, make_stream, path):
    train(make_learner(), make_stream(5), checkpoint=path)
    damage(path)
    learner = make_learner(seed=3)
    train(learner, make_stream(3))
    before = state_of(learner)
    with pytest.raises(StreamError, match=r"run\.pt"):
        train(learner, make_stream(5), checkpoint=path)
    torch.testing.assert_close(state_of(learner), before, rtol=0, atol=0)


def test_a_write_that_fails_leaves_the_file_of_before(make_learner, make_stream, path, monkeypatch):
    train(make_learner(), make_stream(5), checkpoint=path)
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        train(make_learner(), make_stream(9), checkpoint=path)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["run.pt"]


def test_a_folder_that_is_missing_is_told_before_anything_is_learned(make_learner, make_stream, tmp_path):
    learner = make_learner()
    with pytest.raises(ConfigError, match="does not exist"):
        train(learner, make_stream(5), checkpoint=tmp_path / "absent" / "run.pt")
    assert learner.steps == 0


@pytest.mark.parametrize("kind", ["steps", "sequences"])
def test_data_shorter_than_the_checkpoint_are_an_error(kind, make_learner, make_stream, path):
    def data(count):
        if kind == "steps":
            return make_stream(count)
        return sequences(iter([tuple(torch.stack(part, 1) for part in zip(*make_stream(2), strict=True))] * count))

    train(make_learner(), data(9), checkpoint=path)
    with pytest.raises(StreamError, match=f"the data end after 4 {kind}, but the checkpoint was written after 9 {kind}"):
        train(make_learner(), data(4), checkpoint=path)


def test_a_nan_that_is_seen_late_is_not_saved(make_stream, path):
    from pararnn_cola import COLA, Network, NonFiniteLossError, stack_networks

    learner = COLA(stack_networks([Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64) for seed in range(2)]), lr=0.05)
    items = [(u.expand(2, -1, -1), y.expand(2, -1, -1)) for u, y in make_stream(30)]
    items[12] = (items[12][0], items[12][1] * float("inf"))
    with pytest.raises(NonFiniteLossError):
        train(learner, items, checkpoint=path, checkpoint_every=5)
    assert torch.load(path)["position"] == (10, 0, 10)
