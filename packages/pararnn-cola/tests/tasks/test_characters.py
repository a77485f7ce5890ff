import itertools
import math
import sys

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_cola.tasks import Characters

TEXT = "the quick brown fox jumps over the lazy dog, and then sleeps. " * 12


@pytest.fixture
def task():
    return Characters(TEXT, length=9)


def read(task, inputs):
    assert set(inputs.unique().tolist()) == {0.0, 1.0}
    assert (inputs.sum(-1) == 1).all()
    return task.decode(inputs.argmax(-1))


def test_sequences_stand_in_the_training_text_and_targets_are_one_character_later(task, generator):
    training = task.decode(task.train)
    batch = task.batch(20, generator)
    assert batch.inputs.shape == (20, 9, len(set(TEXT)))
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        text, following = read(task, inputs), task.decode(targets)
        assert text[1:] == following[:-1]
        assert text + following[-1] in training


def test_the_end_of_the_text_is_kept_for_tests():
    task = Characters(TEXT, length=9, test_share=0.25)
    assert task.decode(task.train) + task.decode(task.test) == TEXT
    assert len(task.test) == math.ceil(len(TEXT) / 4)


def test_the_vocabulary_is_what_occurs_in_order(task):
    assert task.vocabulary == "".join(sorted(set(TEXT)))
    assert task.input_size == task.output_size == len(set(TEXT))
    assert task.decode(task.encode("brown fox")) == "brown fox"


def test_a_character_that_never_occurs_cannot_be_encoded(task):
    with pytest.raises(InputError, match="the character '%' is not among the"):
        task.encode("fox%")


def test_a_stream_reads_on_without_a_gap_from_evenly_spread_starts(task):
    training = task.decode(task.train)
    rows = ["", "", ""]
    following = ["", "", ""]
    for u, y in itertools.islice(task.stream(3), 100):
        for row in range(3):
            rows[row] += read(task, u[row : row + 1])
            following[row] += task.decode(y[row : row + 1])
    for row in range(3):
        start = row * len(training) // 3
        assert rows[row] == training[start : start + 100]
        assert following[row] == training[start + 1 : start + 101]


def test_a_stream_goes_on_at_the_start_of_the_text_after_its_end(task):
    training = task.decode(task.train)
    steps = list(itertools.islice(task.stream(1), len(training) + 5))
    assert "".join(task.decode(y) for _, y in steps) == training[1:] + training[:6]


def test_a_stream_for_an_ensemble_repeats_each_pair(task):
    (u, y), (expected_u, expected_y) = next(task.stream(4, lead=(3,), dtype=torch.float64)), next(task.stream(4))
    assert (u.shape, y.shape, u.dtype) == ((3, 4, task.input_size), (3, 4), torch.float64)
    assert torch.equal(u[2], expected_u.double())
    assert torch.equal(y[2], expected_y)


@pytest.mark.parametrize("batch", [0, 10_000, 1.5])
def test_a_stream_of_more_rows_than_characters_is_refused_when_it_is_asked_for(task, batch):
    with pytest.raises(ConfigError, match=f"batch={batch}; the training text has"):
        task.stream(batch)


def test_bits_per_character_are_those_of_a_literal_loop(network_for):
    task = Characters(TEXT * 30, length=9)
    network = network_for(task)
    test, surprise, count = task.encode(TEXT * 30)[len(task.train) :], 0.0, 0
    one_hot = torch.eye(task.input_size, dtype=torch.float64)
    with torch.no_grad():
        for first in range(0, len(test) - 1000, 1000):
            states = network.zero_state(1)
            for place in range(first, first + 1000):
                output, states = network.advance(one_hot[test[place]].unsqueeze(0), states)
                surprise -= math.log2(float(output[0].softmax(-1)[test[place + 1]]))
                count += 1
    assert count == 2000
    assert float(task.evaluate(network)["bits_per_character"]) == pytest.approx(surprise / count, rel=1e-12)


def test_a_network_that_knows_nothing_needs_the_bits_of_the_vocabulary(task, network_for):
    network = network_for(task)
    with torch.no_grad():
        network.readout.weight.zero_()
    assert float(task.evaluate(network)["bits_per_character"]) == pytest.approx(math.log2(task.output_size))


def test_a_path_is_read_and_a_string_is_the_text(tmp_path, task):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    assert torch.equal(Characters(tmp_path / "text.txt", length=9).train, task.train)


def test_a_path_that_is_given_as_a_text_is_told_from_one(tmp_path):
    (tmp_path / "my text").write_text(TEXT, encoding="utf-8")
    for text in (str(tmp_path / "my text"), "/corpora/my_text_file.txt", r"C:\corpora\text.txt"):
        with pytest.raises(ConfigError, match=r"names a file; .* pathlib\.Path"):
            Characters(text, length=5)
    assert Characters("either/or. and so on" * 30, length=5).vocabulary


def test_bytes_are_neither_a_text_nor_a_path():
    with pytest.raises(ConfigError, match="text is of type bytes"):
        Characters(TEXT.encode())


@pytest.mark.parametrize("place", [-1, 999])
def test_places_outside_the_vocabulary_cannot_be_decoded(task, place):
    with pytest.raises(InputError, match="the vocabulary has 0 to"):
        task.decode(torch.tensor([0, place]))
    assert task.decode(torch.tensor([], dtype=torch.int64)) == ""


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"], ids=["missing", "latin"])
def test_a_path_that_cannot_be_read_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"text\.txt cannot be read as a text in UTF-8"):
        Characters(tmp_path / "text.txt")


def test_without_a_text_the_help_topics_of_python_are_read(generator):
    topics = pytest.importorskip("pydoc_data.topics").topics
    task = Characters()
    assert len(task.train) + len(task.test) == sum(map(len, topics.values())) + len(topics) - 1
    assert task.batch(2, generator).inputs.shape == (2, 100, task.input_size)


def test_without_help_topics_a_text_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match="ships without its help topics"):
        Characters()


@pytest.mark.parametrize("text", ["", "a", "ab" * 5, "a" * 500], ids=["empty", "one", "short", "same"])
def test_a_text_to_learn_nothing_from_is_refused(text):
    with pytest.raises(InputError, match=f"a text of {len(text)} characters"):
        Characters(text, length=20)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_text_has_a_part_to_learn_from_and_a_part_for_tests(share):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Characters(TEXT, length=9, test_share=share)
