from __future__ import annotations

import dataclasses
import json
import math

import pytest

from pararnn.errors import ConfigError
from pararnn_cola.study import results
from pararnn_cola.study.results import Record


@pytest.fixture
def records(entry):
    return [
        Record(
            entry=entry,
            configuration=configuration,
            train=(0.1 * index, math.inf),
            metrics={"mse_last": (math.nan, 1.0)},
            curve=((2, 0.5), (4, math.inf)),
            diagnostics={"mu": (1.0, 1.2)},
            facts={"seconds": 1.5},
        )
        for index, configuration in enumerate(entry.configurations())
    ]


def same(one, two):
    return one.to_json() == two.to_json()


def test_what_was_appended_is_loaded(records, tmp_path):
    path = tmp_path / "new folder" / "results.jsonl"
    results.append(path, records)
    loaded = results.load(path)
    assert len(loaded) == len(records)
    assert all(map(same, loaded, records))
    assert loaded[0].train[1] == math.inf
    assert math.isnan(loaded[0].metrics["mse_last"][0])


def test_there_is_nothing_in_a_file_that_is_not_there(tmp_path):
    assert results.load(tmp_path / "results.jsonl") == []


def test_an_entry_that_was_cut_short_does_not_count(records, tmp_path):
    path = tmp_path / "results.jsonl"
    results.append(path, records)
    path.write_text(path.read_text()[:-30])
    assert results.load(path) == []


@pytest.mark.parametrize("cut", [1, 30, 2000], ids="{}bytes".format)
def test_an_entry_done_again_after_a_kill_is_whole(records, tmp_path, cut):
    path = tmp_path / "results.jsonl"
    other = [dataclasses.replace(record, entry=dataclasses.replace(record.entry, batch=9)) for record in records]
    results.append(path, other)
    results.append(path, records)
    path.write_text(path.read_text()[:-cut])
    results.append(path, records)
    loaded = results.load(path)
    assert len(loaded) == 2 * len(records)
    assert {record.entry.key for record in loaded} == {records[0].entry.key, other[0].entry.key}


def test_lines_that_are_no_records_are_passed_over(records, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('not json\n{"key": "a"}\n[]\n\n')
    results.append(path, records)
    assert len(results.load(path)) == len(records)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": None},
        {"metrics": {"mse_last": [1.0]}},
        {"train": ["a", "b"]},
        {"train": [1.0]},
        {"entry": {"task": "adding"}},
        {"configuration": []},
    ],
    ids=str,
)
def test_a_line_that_is_no_whole_record_is_passed_over(records, tmp_path, change):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({**json.loads(records[0].to_json()), **change}) + "\n")
    results.append(path, records)
    assert len(results.load(path)) == len(records)


def test_bytes_that_are_no_text_spoil_a_line_and_a_mark_at_the_start_none(records, tmp_path):
    path = tmp_path / "results.jsonl"
    text = "".join(f"{record.to_json()}\n" for record in records).encode()
    path.write_bytes(b"\xef\xbb\xbf" + text + b"\xff\xfe\n" + b"[" * 100_000 + b"\n")
    assert len(results.load(path)) == len(records)


def test_the_number_of_records_is_that_of_the_entry_whatever_the_file_says(records, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({**json.loads(records[0].to_json()), "key": "other", "of": 1}) + "\n")
    assert results.load(path) == []


def test_a_folder_that_cannot_be_made_is_an_error(records, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        results.append(tmp_path / "file" / "results.jsonl", records)
