"""The file of a run: where it may lie, what it is worth, and that nothing changes unless it is worth it."""

import os
import stat

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import Step, StreamError, memmap_stream, sequences, train
from pararnn_cola.streaming.digest import digest_of


class StoppedError(Exception):
    """What a test throws into a run."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.pt"


@pytest.fixture
def saved(path, make_learner, make_stream):
    train(make_learner(), make_stream(20), checkpoint=path)
    return path


@pytest.fixture
def learner(make_learner, make_stream):
    """One that has a life of its own already, gradients that were used included."""
    learner = make_learner(seed=3, lr=0.01)
    train(learner, make_stream(3, seed=9))
    return learner


def everything(learner):
    state = learner.state_dict()
    gradients = {name: parameter.grad.clone() for name, parameter in learner.network.named_parameters()}
    group = {key: value for key, value in learner.optimizer.param_groups[0].items() if key != "params"}
    momenta = [dict(found) for found in state["optimizer"]["state"].values()]
    return (state["network"], state["tensors"], gradients, momenta), (repr(group), state["steps"], learner.buffers.spent)


@pytest.fixture
def assert_untouched(learner):
    tensors, others = everything(learner)

    def check():
        torch.testing.assert_close(everything(learner)[0], tensors, rtol=0, atol=0)
        assert everything(learner)[1] == others

    return check


def refused(learner, data, path, words, error=StreamError, **options):
    with pytest.raises(error, match=words):
        train(learner, data, checkpoint=path, **options)


def rewritten(path, change, *, sealed=True):
    """The file with its content changed, and a digest that fits, as nobody but a forger has it."""
    content = torch.load(path)
    change(content)
    if sealed:
        content["digest"] = digest_of({name: content[name] for name in ("source", "position", "losses", "learner")})
    torch.save(content, path)


def put(*keys, value):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def test_a_flipped_bit_does_no_harm_wherever_it_is(saved, learner, make_stream):
    whole, state, before = saved.read_bytes(), torch.load(saved)["learner"]["network"], learner.state_dict()
    noticed = 0
    for place in range(5, len(whole), 173):
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        expected = before["network"]
        try:
            # What the archive holds around its content, such as dates, may differ.
            train(learner, make_stream(20), checkpoint=saved, steps=20)
            expected = state
        except StreamError:
            noticed += 1
        torch.testing.assert_close(learner.state_dict()["network"], expected, rtol=0, atol=0)
        learner.load_state_dict(before)
    assert noticed > 20


@pytest.mark.parametrize(
    "change",
    [
        put("learner", "network", "readout.bias", value=torch.ones(2, dtype=torch.float64)),
        put("learner", "steps", value=21),
        put("learner", "optimizer", "param_groups", 0, "lr", value=0.5),
        put("losses", "total", value=0.0),
        put("position", value=(19, 0, 19)),
        put("source", "kind", value="sequences"),
        put("digest", value=None),
    ],
    ids=lambda change: "",
)
def test_content_that_is_not_what_was_written_is_damage(change, saved, learner, make_stream, assert_untouched):
    rewritten(saved, change, sealed=False)
    refused(learner, make_stream(30), saved, "is damaged: its content is not what was written")
    assert_untouched()


@pytest.mark.parametrize(
    "change",
    [
        put("position", value=("a", 0, 0)),
        put("position", value=(20, 0)),
        put("position", value=(20, 0, 20, 0)),
        put("position", value=(-1, 0, 0)),
        put("position", value=(20, 0, 21)),
        put("position", value=(20.0, 0, 0)),
        put("position", value=7),
        put("losses", value={}),
        put("losses", value=[]),
        put("losses", "points", value=[1]),
        put("losses", "running", value="0"),
        put("source", value="steps"),
        put("learner", value=[1]),
        put("learner", value={}),
        put("learner", "tensors", "state.0.0", value=torch.zeros(3, 9, dtype=torch.float64)),
        put("learner", "tensors", "state.0.0", value=None),
        put("learner", "network", value=None),
        put("learner", "optimizer", value={}),
        put("learner", "gradients", value={"readout.bias": torch.zeros(7)}),
        put("format", value="pararnn-cola run 1"),
    ],
    ids=lambda change: "",
)
def test_a_forged_file_changes_nothing(change, saved, learner, make_stream, assert_untouched):
    rewritten(saved, change)
    refused(learner, make_stream(30), saved, r"run\.pt")
    assert_untouched()


def test_steps_below_the_checkpoint_are_refused(saved, learner, make_stream, assert_untouched):
    refused(learner, make_stream(30), saved, "written after 20 steps, and steps=5 ends before", steps=5)
    assert_untouched()
    assert train(learner, make_stream(30), checkpoint=saved, steps=20).steps == 20


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (lambda stream: stream(10), StreamError, "the data end after 10 steps, but the checkpoint was written after 20"),
        (lambda stream: [*stream(20), *stream(1, batch=2)], ShapeError, r"item 20 of the stream has \(2,\) samples, but.*with \(3,\)"),
        (lambda stream: [*stream(20), 7], StreamError, "item 20 of the stream is of type int"),
        (lambda stream: failing(stream(12)), StoppedError, None),
        (lambda stream: failing(stream(12), KeyboardInterrupt), KeyboardInterrupt, None),
    ],
    ids=["short", "batch", "item", "error", "Ctrl-C"],
)
def test_data_that_fail_before_they_get_to_the_checkpoint_leave_the_learner_alone(data, error, words, saved, learner, make_stream, assert_untouched):
    refused(learner, data(make_stream), saved, words, error)
    assert_untouched()


def test_a_resume_that_fails_leaves_every_rule_alone(rule, path, make_learner, make_stream, assert_same):
    train(make_learner(rule), make_stream(20), checkpoint=path)
    learner, other = make_learner(rule, seed=3), make_learner(rule, seed=3)
    for one in (learner, other):
        for u, y in make_stream(7, seed=9):
            one.step(u, y)
    refused(learner, make_stream(10), path, "the data end after 10 steps")
    for one in (learner, other):
        for u, y in make_stream(7, seed=8):
            one.step(u, y)
        one.apply()
    assert_same(learner, other)


def failing(items, error=StoppedError):
    yield from items
    raise error


def test_another_batch_may_follow_a_checkpoint_where_it_begins_a_sequence(saved, learner, make_stream):
    small = [Step(u, y, reset=True) for u, y in make_stream(1, batch=2)]
    assert train(learner, [*make_stream(20), *small], checkpoint=saved).steps == 21


def episodes(lengths):
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(3, length, 2, generator=generator, dtype=torch.float64) for _ in range(2)) for length in lengths]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [((10, 10, 3, 10), "step 3 of sequence 2, but .* step 5 of it"), ((10, 10), "2 sequences, but .* 2 sequences and 5 steps of another")],
)
def test_a_sequence_that_ends_before_the_checkpoint_in_it_is_an_error(lengths, words, path, make_learner, learner, assert_untouched):
    train(make_learner(), sequences(iter(episodes((10, 10, 10, 10)))), steps=25, checkpoint=path)
    refused(learner, sequences(iter(episodes(lengths))), path, words)
    assert_untouched()


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (([5] * 4, 1, 12), ([5] * 6, 1), True),
        (([5] * 4, 1, 20), ([5] * 6, 1), True),
        (([5] * 4, 1, 12), ([5] * 3, 1), False),
        (([5] * 4, 3, 12), ([5] * 4, 5), True),
        (([5] * 4, 3, 12), ([5] * 6, 3), True),
        (([5] * 4, 3, 32), ([5] * 6, 3), False),
    ],
    ids=["grown", "grown behind", "shorter", "more epochs", "grown in the first pass", "grown in the second"],
)
def test_a_loader_may_grow_as_long_as_the_checkpoint_is_in_its_first_pass(before, after, allowed, path, make_learner, learner):
    lengths, epochs, steps = before
    train(make_learner(), sequences(episodes(lengths), epochs=epochs), steps=steps, checkpoint=path)
    lengths, epochs = after
    data = sequences(episodes(lengths), epochs=epochs)
    if allowed:
        assert train(learner, data, checkpoint=path).steps == sum(lengths) * epochs
    else:
        refused(learner, data, path, "over other sequences .length: 4 then, . now")


def test_a_list_of_steps_that_became_shorter_is_other_data(path, make_learner, make_stream, learner):
    items = list(make_stream(30))
    train(make_learner(), items, steps=10, checkpoint=path)
    refused(learner, items[:20], path, "over other steps .length: 30 then, 20 now")
    assert train(learner, [*items, *items], checkpoint=path).steps == 60


def test_another_batch_size_of_a_loader_is_other_data(path, make_learner, learner):
    def loader(size):
        dataset = TensorDataset(*(torch.zeros(12, 5, 2, dtype=torch.float64) for _ in range(2)))
        return DataLoader(dataset, batch_size=size)

    train(make_learner(), sequences(loader(4)), steps=10, checkpoint=path)
    refused(learner, sequences(loader(5)), path, "over other sequences .batch size: 4 then, 5 now")
    # Of an iterator, nobody knows it.
    assert train(learner, sequences(iter(loader(4))), checkpoint=path).steps == 15


ROWS = torch.randn(61, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((ROWS[:-1],), {}, "rows: 61 then, 60 now"),
        ((ROWS,), {"batch": 4}, "streams: 3 then, 4 now"),
        ((ROWS, ROWS), {}, "targets of their own: False then, True now"),
        ((ROWS.float(),), {}, "stored dtypes"),
        ((torch.cat([ROWS[:1] + 1, ROWS[1:]]),), {}, "first and last rows"),
        ((torch.cat([ROWS[:-1], ROWS[-1:] + 1]),), {}, "first and last rows"),
        ((ROWS,), {"transform": lambda u, y: (u, y)}, "a transform: False then, True now"),
    ],
)
def test_rows_of_another_array_are_other_data(arguments, options, words, path, make_learner, learner, assert_untouched):
    given = {"batch": 3, "dtype": torch.float64}
    train(make_learner(), memmap_stream(ROWS, **given), steps=8, checkpoint=path)
    refused(learner, memmap_stream(*arguments, **{**given, **options}), path, words)
    assert_untouched()
    assert train(learner, memmap_stream(ROWS.clone(), block=5, **given), checkpoint=path).steps == 20


@pytest.mark.parametrize("name", ["folder", "x" * 256, "", "null\0", "/proc/run.pt", "pipe", "loop"], ids=lambda name: repr(name[:9]))
@pytest.mark.skipif(os.name == "nt", reason="names and pipes are those of POSIX")
@pytest.mark.parametrize("resume", [True, False])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_learned(name, resume, tmp_path, learner, make_stream, assert_untouched):
    if name.startswith("/") and not os.path.isdir(os.path.dirname(name)):
        pytest.skip("not on this system")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    given = name if name.startswith("/") or not name else f"{tmp_path}/{name}"
    refused(learner, make_stream(5), given, "checkpoint=", ConfigError, resume=resume)
    assert_untouched()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "loop", "pipe"]


def test_a_name_may_be_as_long_as_names_are(tmp_path, make_learner, make_stream):
    path = tmp_path / f"{'x' * 252}.pt"
    train(make_learner(), make_stream(5), checkpoint=path)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_a_new_file_has_the_mode_of_new_files_and_an_old_one_keeps_its_own(mask, path, make_learner, make_stream):
    before = os.umask(mask)
    try:
        train(make_learner(), make_stream(5), checkpoint=path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
        path.chmod(0o640)
        train(make_learner(), make_stream(9), checkpoint=path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_followed(exists, tmp_path, make_learner, make_stream):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "run.pt", tmp_path / "link.pt"
    link.symlink_to(target)
    if exists:
        train(make_learner(), make_stream(3), checkpoint=target)
    train(make_learner(), make_stream(5), checkpoint=link)
    assert link.is_symlink()
    assert torch.load(target)["position"] == (5, 0, 5)
    assert train(make_learner(), make_stream(9), checkpoint=link).resumed_at == 5


def test_a_rate_of_another_float_type_can_be_read_back(path, make_learner, make_stream):
    class Rate(float):
        """As numpy's float64 is one."""

    learner = make_learner()
    learner.optimizer.param_groups[0]["lr"] = Rate(0.02)
    train(learner, make_stream(5), checkpoint=path)
    resumed = make_learner()
    assert train(resumed, make_stream(9), checkpoint=path).resumed_at == 5
    assert resumed.optimizer.param_groups[0]["lr"] == 0.02


def test_the_rate_of_a_checkpoint_goes_on_until_another_is_set(path, make_learner, make_stream):
    train(make_learner(lr=0.1), make_stream(5), checkpoint=path)
    resumed, rates = make_learner(lr=0.001), []

    def lower(step, result):
        rates.append(resumed.optimizer.param_groups[0]["lr"])
        resumed.optimizer.param_groups[0]["lr"] = 0.001

    train(resumed, make_stream(7), checkpoint=path, on_step=lower)
    assert rates == [0.1, 0.001]
