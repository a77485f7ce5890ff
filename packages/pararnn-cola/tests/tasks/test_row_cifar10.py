import pickle
from pathlib import Path

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_cola.tasks import RowCIFAR10

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def python_2_pickle(images, labels):
    """The opcodes that numpy under Python 2 wrote, as they stand in the files of CIFAR-10."""
    data = bytes(images.to(torch.uint8).flatten().tolist())
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01"
        + (b"(K" + bytes([len(images)]) + b"M" + (3072).to_bytes(2, "little") + b"t")
        + b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + (len(data).to_bytes(4, "little") + data + b"tb")
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels.tolist()) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"U\x0bbatch_labelU\x04nameu."


@pytest.fixture
def batches(generator):
    return {
        name: (torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8), torch.randint(0, 10, (4,), generator=generator))
        for name in BATCHES
    }


@pytest.fixture
def pickles(tmp_path, batches):
    for name, (images, labels) in batches.items():
        (tmp_path / name).write_bytes(python_2_pickle(images, labels))
    return tmp_path


@pytest.fixture
def records(tmp_path_factory, batches):
    root = tmp_path_factory.mktemp("records")
    for name, (images, labels) in batches.items():
        records = torch.cat([labels.to(torch.uint8).unsqueeze(1), images.flatten(1)], 1)
        (root / f"{name}.bin").write_bytes(bytes(records.flatten().tolist()))
    return root


@pytest.fixture(params=["pickles", "records"])
def folder(request):
    return request.getfixturevalue(request.param)


def test_a_step_is_a_row_of_red_then_green_then_blue(folder, batches):
    task = RowCIFAR10(folder)
    assert task.train[0].shape == (20, 32, 96)
    assert torch.equal(task.train[1], torch.cat([batches[name][1] for name in BATCHES[:5]]))
    for sequence, image in zip(task.test[0], batches["test_batch"][0], strict=True):
        for row in range(32):
            assert torch.equal(sequence[row], torch.cat([image[channel, row] for channel in range(3)]))


def test_the_folder_above_will_do(folder):
    inner = folder / ("cifar-10-batches-bin" if (folder / "test_batch.bin").exists() else "cifar-10-batches-py")
    inner.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file():
            file.rename(inner / file.name)
    assert RowCIFAR10(folder).test[0].shape == (4, 32, 96)


def test_pickles_that_numpy_writes_today_are_read_too(pickles, batches):
    numpy = pytest.importorskip("numpy")
    images, labels = batches["test_batch"]
    content = {"data": numpy.array(images.flatten(1).tolist(), dtype=numpy.uint8), "labels": labels.tolist()}
    for protocol in (2, 4, 5):
        (pickles / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
        assert torch.equal(RowCIFAR10(pickles).test[0], images.transpose(1, 2).reshape(-1, 32, 96))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda numpy, x: numpy.asfortranarray(x), r"an array \(4, 3072\) of u1, column by column, 12288 bytes"),
        (lambda numpy, x: x.reshape(4, 3, 32, 32), r"an array \(4, 3, 32, 32\) of u1"),
        (lambda numpy, x: x.view("float32"), r"an array \(4, 768\) of f4, 12288 bytes"),
        (lambda numpy, x: x.tolist(), "a list of list; an array was expected"),
    ],
    ids=["columns", "planes", "float", "list"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pixels_in_another_order_or_dtype_are_refused_instead_of_scrambled(pickles, batches, change, message, protocol):
    numpy = pytest.importorskip("numpy")
    images, labels = batches["test_batch"]
    data = change(numpy, numpy.array(images.flatten(1).tolist(), dtype=numpy.uint8))
    (pickles / "test_batch").write_bytes(pickle.dumps({"data": data, "labels": labels.tolist()}, protocol=protocol))
    with pytest.raises(InputError, match=message):
        RowCIFAR10(pickles)


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1.7, 2, 3, 4], "a list of float and int"), ([True] * 4, "a list of bool"), ((1, 2, 3, 4), "a tuple"), ([0, 1, 2, -1], "numbers from -1 to 2")],
    ids=["fractions", "truths", "tuple", "negative"],
)
def test_labels_that_are_no_whole_numbers_are_refused(pickles, batches, labels, message):
    numpy = pytest.importorskip("numpy")
    data = numpy.array(batches["test_batch"][0].flatten(1).tolist(), dtype=numpy.uint8)
    (pickles / "test_batch").write_bytes(pickle.dumps({"data": data, "labels": labels}, protocol=2))
    with pytest.raises(InputError, match=f"for labels {message}; a list of whole numbers from 0 to 9"):
        RowCIFAR10(pickles)


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_asks_for_anything_else_is_refused_and_not_run(pickles, tmp_path):
    (pickles / "test_batch").write_bytes(pickle.dumps(Harmful(tmp_path / "touched")))
    with pytest.raises(InputError, match="CIFAR-10 holds nothing but arrays"):
        RowCIFAR10(pickles)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "EOFError"),
        (b"<html>", "is no batch of CIFAR-10 as a pickle"),
        (pickle.dumps([1]), "is no batch of CIFAR-10 as a pickle"),
        (pickle.dumps({"data": b""}), "KeyError: 'labels'"),
        (python_2_pickle(torch.zeros(2, 3072), torch.tensor([1])), r"has 1 labels and for pixels an array \(2, 3072\) of u1, 6144 bytes"),
        (python_2_pickle(torch.zeros(1, 3072), torch.tensor([11])), "has for labels numbers from 11 to 11"),
        (python_2_pickle(torch.zeros(0, 3072), torch.tensor([], dtype=torch.int64)), "has 0 labels"),
        (python_2_pickle(torch.zeros(1, 3072), torch.tensor([1]))[:-40], "is no batch of CIFAR-10"),
    ],
    ids=["empty", "page", "list", "no labels", "counts", "label", "no images", "cut"],
)
def test_a_damaged_pickle_is_named_with_what_is_wrong(pickles, content, message):
    (pickles / "data_batch_3").write_bytes(content)
    with pytest.raises(InputError, match=rf"data_batch_3 .*{message}.*replace the file"):
        RowCIFAR10(pickles)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "has 12291 bytes, no multiple of 3073"),
        (lambda content: b"", "has 0 bytes"),
        (lambda content: b"\x0b" + content[1:], "has the label 11"),
    ],
    ids=["cut", "empty", "label"],
)
def test_damaged_records_are_named_with_what_is_wrong(records, change, message):
    file = records / "data_batch_2.bin"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(InputError, match=rf"data_batch_2\.bin .*{message}.*replace the file"):
        RowCIFAR10(records)


def test_a_missing_batch_is_named_with_the_place_to_get_it(folder):
    for file in folder.glob("data_batch_4*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"data_batch_4 or data_batch_4\.bin, .*https://www\.cs\.toronto\.edu"):
        RowCIFAR10(folder)


def test_a_task_shows_where_its_files_are(folder):
    assert repr(RowCIFAR10(folder, "last")) == f"RowCIFAR10(path={str(folder)!r}, placement='last')"
