import gzip

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_cola.tasks import RowMNIST


def idx(magic, values):
    header = b"".join(number.to_bytes(4, "big") for number in (magic, *values.shape))
    return header + bytes(values.flatten().tolist())


@pytest.fixture
def images(generator):
    return {part: torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8) for part, count in (("train", 6), ("t10k", 4))}


@pytest.fixture
def labels():
    return {"train": torch.tensor([3, 1, 4, 1, 5, 9]), "t10k": torch.tensor([0, 2, 6, 5])}


@pytest.fixture
def folder(tmp_path, images, labels):
    for part in images:
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(2051, images[part]))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(2049, labels[part]))
    return tmp_path


def test_images_are_sequences_of_rows(folder, images, labels, generator):
    task = RowMNIST(folder)
    assert torch.equal(task.train[0], images["train"])
    assert torch.equal(task.train[1], labels["train"])
    assert torch.equal(task.test[0], images["t10k"])
    assert torch.equal(task.test[1], labels["t10k"])
    batch = task.batch(3, generator)
    assert batch.inputs.shape == (3, 28, 28)
    assert batch.inputs.max() <= 1


@pytest.mark.parametrize("below", [".", "raw", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_files_are_found_packed_or_not_where_they_are_usually_kept(folder, tmp_path_factory, images, below, packed):
    root = tmp_path_factory.mktemp("data")
    (root / below).mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        target = root / below / (file.name + ".gz" * packed)
        target.write_bytes(gzip.compress(file.read_bytes()) if packed else file.read_bytes())
    assert torch.equal(RowMNIST(str(root)).test[0], images["t10k"])


def test_evaluation_runs_on_the_test_images(folder, network_for):
    task = RowMNIST(folder)
    assert 0 <= float(task.evaluate(network_for(task))["accuracy"]) <= 1


def test_a_missing_file_is_named_with_the_place_to_get_it(folder):
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ConfigError, match=r"t10k-labels-idx1-ubyte .*can be had at https://"):
        RowMNIST(folder)


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere is no folder.*can be had at https://"):
        RowMNIST(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-10], r"announces 6 x 28 x 28 bytes after the 16 of its header but has 4694"),
        ("train-images-idx3-ubyte", lambda content: content + b"x", r"announces 6 x 28 x 28 .*but has 4705"),
        ("train-images-idx3-ubyte", lambda content: content[:12] + b"\0\0\0\x1b" + content[16 : 16 + 6 * 28 * 27], "28 x 27 pixels, 28 x 28 were"),
        ("train-labels-idx1-ubyte", lambda content: b"<htm" + content[4:], r"magic number 1013478509, 2049 was expected"),
        ("train-labels-idx1-ubyte", lambda content: content[:5], r"has 5 bytes"),
        ("train-labels-idx1-ubyte", lambda content: content[:4] + b"\0\0\0\5" + content[8:-1], "has 5 labels for the 6 images"),
        ("train-labels-idx1-ubyte", lambda content: content[:-1] + b"\x0a", "has the label 10"),
        ("train-labels-idx1-ubyte", lambda content: b"", "has 0 bytes"),
    ],
    ids=["short", "long", "sizes", "page", "header", "counts", "label", "empty"],
)
def test_a_damaged_file_is_named_with_what_is_wrong(folder, name, change, message):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(InputError, match=rf"{name} .*{message}.*replace the file"):
        RowMNIST(folder)


@pytest.mark.parametrize("change", [lambda content: content[:-12], lambda content: b"no gzip"], ids=["cut", "other"])
def test_a_packed_file_that_cannot_be_unpacked_is_named(folder, change):
    plain = folder / "train-images-idx3-ubyte"
    (folder / "train-images-idx3-ubyte.gz").write_bytes(change(gzip.compress(plain.read_bytes())))
    plain.unlink()
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        RowMNIST(folder)


def test_a_task_shows_where_its_files_are(folder):
    assert repr(RowMNIST(folder, "last")) == f"RowMNIST(path={str(folder)!r}, placement='last')"
