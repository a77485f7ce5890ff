import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_cola.tasks import UCIHAR, RowCIFAR10, RowMNIST
from pararnn_cola.tasks.har import SIGNALS


@pytest.fixture
def windows(generator):
    drawn = {part: torch.randn(count, 128, 9, generator=generator, dtype=torch.float64) * 3 + 1 for part, count in (("train", 5), ("test", 3))}
    return {part: values.mul(1e6).round().div(1e6) for part, values in drawn.items()}


@pytest.fixture
def folder(tmp_path, windows):
    for part, labels in (("train", (1, 2, 3, 6, 5)), ("test", (4, 4, 1))):
        (tmp_path / part / "Inertial Signals").mkdir(parents=True)
        (tmp_path / part / f"y_{part}.txt").write_text("".join(f"{label}\n" for label in labels))
        for signal, values in zip(SIGNALS, windows[part].unbind(-1), strict=True):
            lines = ("  ".join(f"{value: .7e}" for value in window) for window in values.tolist())
            (tmp_path / part / "Inertial Signals" / f"{signal}_{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_windows_are_normalised_signal_by_signal_over_the_training_windows(folder, windows):
    task = UCIHAR(folder)
    for signal in range(9):
        training = windows["train"][..., signal]
        for (sequences, _), part in ((task.train, "train"), (task.test, "test")):
            expected = (windows[part][..., signal] - training.mean()) / training.std(correction=0)
            torch.testing.assert_close(sequences[..., signal], expected.float(), rtol=1e-5, atol=1e-5)


def test_labels_are_counted_from_zero(folder):
    task = UCIHAR(folder)
    assert task.train[1].tolist() == [0, 1, 2, 5, 4]
    assert task.test[1].tolist() == [3, 3, 0]
    assert (task.input_size, task.output_size, task.length) == (9, 6, 128)


def test_the_folder_above_will_do(folder, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    (above / "UCI HAR Dataset").symlink_to(folder, target_is_directory=True)
    assert torch.equal(UCIHAR(above).test[0], UCIHAR(folder).test[0])


def test_a_signal_that_never_changes_is_zero(folder):
    file = folder / "train" / "Inertial Signals" / "body_gyro_y_train.txt"
    file.write_text(" ".join(["0.25"] * 5 * 128))
    task = UCIHAR(folder)
    assert torch.equal(task.train[0][..., SIGNALS.index("body_gyro_y")], torch.zeros(5, 128))
    assert task.test[0].isfinite().all()


def test_evaluation_runs_on_the_test_windows(folder, network_for):
    task = UCIHAR(folder)
    assert 0 <= float(task.evaluate(network_for(task))["accuracy"]) <= 1


def test_a_missing_file_is_named_with_the_place_to_get_it(folder):
    (folder / "test" / "Inertial Signals" / "total_acc_z_test.txt").unlink()
    with pytest.raises(ConfigError, match=r"total_acc_z_test\.txt.*https://archive\.ics\.uci\.edu"):
        UCIHAR(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("Inertial Signals/body_acc_x_train.txt", "1 2 3", "has 3 numbers; 128 for each of the 5 labels"),
        ("Inertial Signals/body_acc_x_train.txt", "1 two 3", "is no text of numbers .*two"),
        ("Inertial Signals/body_acc_x_train.txt", "1_0 2 3", "is no text of numbers .*underscore"),
        ("Inertial Signals/body_acc_x_train.txt", "1 nan inf", "has 2 numbers that are not finite"),
        ("Inertial Signals/body_acc_x_train.txt", "", "is empty"),
        ("y_train.txt", "0 1 2 3 4", "has labels from 0 to 4; whole numbers from 1 to 6"),
        ("y_train.txt", "1 1 2 3 7", "has labels from 1 to 7"),
        ("y_train.txt", "1 1 2.5 3 4", "has labels from 1 to 4; whole numbers from 1 to 6"),
    ],
    ids=["short", "words", "underscore", "nan", "empty", "label 0", "label 7", "fraction"],
)
def test_a_damaged_file_is_named_with_what_is_wrong(folder, name, content, message):
    (folder / "train" / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name.rpartition('/')[2]} {message}.*replace the file"):
        UCIHAR(folder)


def test_a_path_that_is_none_is_refused():
    for kind in (UCIHAR, RowMNIST, RowCIFAR10):
        with pytest.raises(ConfigError, match="path is of type NoneType; give the folder of"):
            kind(None)


def test_a_task_shows_where_its_files_are(folder):
    assert repr(UCIHAR(folder, "last")) == f"UCIHAR(path={str(folder)!r}, placement='last')"
