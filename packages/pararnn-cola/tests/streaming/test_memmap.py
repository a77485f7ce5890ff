import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, Network, Step, StreamError, memmap_stream, train
from pararnn_cola.streaming.items import Form
from pararnn_cola.streaming.sources import Position

FORM = Form((), 1, torch.device("cpu"))


@pytest.fixture
def np():
    return pytest.importorskip("numpy")


@pytest.fixture
def rows():
    return torch.randn(23, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def pairs(rows, targets, batch):
    """The same steps by indexing one row at a time."""
    length = (len(rows) if targets is not None else len(rows) - 1) // batch
    for t in range(length):
        places = [row * length + t for row in range(batch)]
        yield torch.stack([rows[i] for i in places]), torch.stack([rows[i + 1] if targets is None else targets[i] for i in places])


def all_steps(source, start=Position()):  # noqa: B008
    return list(source.steps(FORM, start))


@pytest.mark.parametrize("block", [1, 3, 4, 100])
@pytest.mark.parametrize("batch", [1, 3, 4, 22])
def test_rows_are_split_into_streams_whatever_the_block(batch, block, rows):
    found = all_steps(memmap_stream(rows, batch=batch, block=block, dtype=torch.float64))
    expected = list(pairs(rows, None, batch))
    assert len(found) == len(expected)
    for t, ((step, ends), (u, y)) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close((step.u, step.y), (u, y), rtol=0, atol=0)
        assert step.reset is (t == 0)
        assert ends is (t == len(expected) - 1)


def test_targets_may_be_an_array_of_their_own(rows):
    classes = torch.arange(23) % 3
    found = all_steps(memmap_stream(rows, classes, batch=4, dtype=torch.float64))
    for (step, _), (u, y) in zip(found, pairs(rows, classes, 4), strict=True):
        torch.testing.assert_close((step.u, step.y), (u, y), rtol=0, atol=0)


def test_a_stream_begins_anywhere(rows):
    source = memmap_stream(rows, batch=3, block=2, dtype=torch.float64)
    for (found, _), (expected, _) in zip(all_steps(source, Position(5, 0, 5)), all_steps(source)[5:], strict=True):
        torch.testing.assert_close(found.u, expected.u, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["path", "np.memmap", "np.load", "sliced", "torch.from_file"])
def test_every_way_to_map_a_file_gives_the_same_steps(kind, rows, np, tmp_path):
    plain, npy = tmp_path / "rows.bin", tmp_path / "rows.npy"
    rows.numpy().tofile(plain)
    np.save(npy, rows.numpy())
    data = {
        "path": lambda: npy,
        "np.memmap": lambda: np.memmap(plain, dtype=np.float64, mode="r", shape=(23, 2)),
        "np.load": lambda: np.load(npy, mmap_mode="r"),
        "sliced": lambda: np.load(npy, mmap_mode="r")[3:],
        "torch.from_file": lambda: torch.from_file(str(plain), size=46, dtype=torch.float64).view(23, 2),
    }[kind]()
    found = all_steps(memmap_stream(data, batch=3, block=4, dtype=torch.float64))
    for (step, _), (u, y) in zip(found, pairs(rows[3:] if kind == "sliced" else rows, None, 3), strict=True):
        torch.testing.assert_close((step.u, step.y), (u, y), rtol=0, atol=0)


def test_rows_of_one_number_become_vectors_of_one(np):
    (step, _), *_ = all_steps(memmap_stream(np.arange(9, dtype=np.int16), batch=2))
    torch.testing.assert_close(step, Step(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [5.0]]), reset=True))


def test_a_transform_makes_one_hot_inputs_of_codes(np):
    codes = np.frombuffer(b"hello world", dtype=np.uint8)
    source = memmap_stream(codes, transform=lambda u, y: (torch.nn.functional.one_hot(u.long(), 256).float(), y.long()))
    report = train(COLA(Network.rnn(256, 5, 256, seed=0), loss="cross_entropy"), source)
    assert report.steps == 10


def test_training_on_a_file_equals_training_on_its_steps(rows, np, tmp_path, make_learner, assert_same):
    np.save(tmp_path / "rows.npy", rows.numpy())
    one, two = make_learner(), make_learner()
    report = train(one, memmap_stream(tmp_path / "rows.npy", batch=3, block=4, dtype=torch.float64))
    train(two, pairs(rows, None, 3))
    assert_same(one, two)
    assert (report.steps, report.sequences) == (7, 1)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((torch.zeros(4, 2),), {"batch": 4}, ShapeError, "4 rows are too few for 4 streams"),
        ((torch.zeros(4, 2), torch.zeros(3, 2)), {}, ShapeError, "4 rows of inputs, but 3 of targets"),
        ((torch.zeros(4, 2),), {"batch": 0}, ConfigError, "batch=0"),
        ((torch.zeros(4, 2),), {"block": 0}, ConfigError, "block=0"),
        ((torch.zeros(4, 2),), {"batch": 2.0}, ConfigError, "batch=2.0"),
        ((torch.zeros(4, 2),), {"transform": 1}, ConfigError, "transform=1 is no function"),
        ((torch.zeros(4, 2),), {"dtype": "float32"}, ConfigError, "dtype='float32'"),
        ((torch.zeros(4, 2, dtype=torch.complex64),), {}, ConfigError, "complex64, and a cast would lose the imaginary parts"),
        ((torch.zeros(()),), {}, ConfigError, "has no rows"),
        (([1, 2],), {}, ConfigError, "type list has no rows"),
    ],
)
def test_arrays_that_cannot_be_streams(arguments, options, error, words):
    with pytest.raises(error, match=words):
        memmap_stream(*arguments, **options)


def test_a_file_that_is_none_is_named(np, tmp_path):
    (tmp_path / "text.npy").write_text("no array")
    for name in ("text.npy", "absent.npy"):
        with pytest.raises(ConfigError, match=name):
            memmap_stream(tmp_path / name)


def test_a_path_without_numpy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    with pytest.raises(ConfigError, match="pip install numpy"):
        memmap_stream(tmp_path / "rows.npy")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.npy"


def test_changes_of_an_array_that_is_copied_on_write_count(rows, np, path):
    np.save(path, rows.numpy())
    array = np.load(path, mmap_mode="c")
    array *= 2
    for (step, _), (u, y) in zip(all_steps(memmap_stream(array, batch=3, dtype=torch.float64)), pairs(2 * rows, None, 3), strict=True):
        torch.testing.assert_close((step.u, step.y), (u, y), rtol=0, atol=0)


@pytest.mark.parametrize("mode", [None, "r", "c"])
def test_the_other_byte_order_is_put_right(mode, rows, np, path):
    np.save(path, rows.numpy().astype(np.dtype(np.float64).newbyteorder("S")))
    for (step, _), (u, y) in zip(
        all_steps(memmap_stream(np.load(path, mmap_mode=mode), batch=3, dtype=torch.float64)), pairs(rows, None, 3), strict=True
    ):
        torch.testing.assert_close((step.u, step.y), (u, y), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_every_dtype_that_torch_has_is_read(dtype, np, path):
    np.save(path, (np.arange(12) % 2).astype(dtype))
    found = all_steps(memmap_stream(path, batch=2))
    assert [step.u.flatten().tolist() for step, _ in found] == [[t % 2, (t + 5) % 2] for t in range(5)]


@pytest.mark.parametrize("dtype", ["longdouble", "S3", "U3", "complex64", "M8[s]", [("a", "f4")]], ids=str)
def test_a_dtype_that_cannot_be_learned_from_is_named_with_its_file(dtype, np, path):
    np.save(path, np.zeros((9, 2), dtype))
    for given in (path, np.load(path, mmap_mode="r")):
        with pytest.raises(ConfigError, match=r"rows\.npy is of dtype .*"):
            memmap_stream(given)


def test_complex_numbers_go_through_a_transform(np, path):
    values = np.arange(9) + 1j
    np.save(path, values)
    source = memmap_stream(path, transform=lambda u, y: (torch.view_as_real(u), torch.view_as_real(y)))
    assert all_steps(source)[3][0].u.tolist() == [[3.0, 1.0]]


def test_an_archive_and_a_lone_number_are_named(np, tmp_path):
    np.savez(tmp_path / "many.npz", one=np.zeros(5), two=np.zeros(5))
    with pytest.raises(ConfigError, match=r"many\.npz is an archive \(\.npz\)"):
        memmap_stream(tmp_path / "many.npz")
    np.save(tmp_path / "lone.npy", np.zeros(()))
    with pytest.raises(ConfigError, match=r"lone\.npy holds one number"):
        memmap_stream(tmp_path / "lone.npy")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x10\x00{'descr': }}}}}}}\n"], ids=["empty", "zip", "head", "header"]
)
def test_a_damaged_file_is_named(content, np, path):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"rows\.npy (cannot be mapped|is an archive)"):
        memmap_stream(path)


def test_a_file_that_shrinks_or_goes_away_in_midstream_is_named(rows, np, path):
    np.save(path, rows.numpy())
    source = memmap_stream(path, block=4, dtype=torch.float64)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StreamError, match=r"rows\.npy had 23 rows when it was opened, but ends before row"):
        all_steps(source)
    path.unlink()
    with pytest.raises(StreamError, match=r"rows 0 to 4 of .*rows\.npy cannot be read any more"):
        all_steps(source)


@pytest.mark.parametrize(
    ("transform", "error", "words"),
    [
        (lambda u, y: u, ConfigError, "transform gave Tensor"),
        (lambda u, y: (u, None), ConfigError, "transform gave tuple"),
        (lambda u, y: (u[:, :-1], y), ShapeError, r"transform gave inputs \(3, 3, 2\) for a block of \(3, 4"),
        (lambda u, y: (u, y.flatten(0, 1)), ShapeError, r"transform gave targets \(12, 2\)"),
    ],
)
def test_a_transform_that_gives_something_else_is_named(transform, error, words, rows):
    with pytest.raises(error, match=words):
        all_steps(memmap_stream(rows, batch=3, block=4, transform=transform))
