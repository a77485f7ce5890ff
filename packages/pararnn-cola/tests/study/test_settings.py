from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from pararnn.errors import ConfigError
from pararnn_cola.study.presets import PRESETS, chosen_entries, grid
from pararnn_cola.study.settings import Entry, entry_of


def test_every_combination_is_one_configuration(entry):
    found = entry.configurations()
    assert len(found) == len(entry.varied) * len(entry.clips) * len(entry.optimizers) == 12
    assert len({(one.algorithm, one.lr, one.clip, tuple(one.values.items())) for one in found}) == 12


def test_an_entry_survives_json(entry):
    again = entry_of(json.loads(json.dumps(entry.to_dict())))
    assert again == entry
    assert again.key == entry.key


def test_the_key_is_the_same_in_another_process(entry):
    program = "import json, sys; from pararnn_cola.study.settings import entry_of; print(entry_of(json.load(sys.stdin)).key)"
    ran = subprocess.run([sys.executable, "-c", program], input=json.dumps(entry.to_dict()), capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == entry.key


def test_the_key_does_not_depend_on_the_order_of_options(small):
    small["task_options"] = {"length": 6, "placement": "last"}
    one = Entry(rule="COLA", **small)
    small["task_options"] = {"placement": "last", "length": 6}
    assert Entry(rule="COLA", **small).key == one.key


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "TBPTT1"},
        {"task_options": {"length": 7}},
        {"clips": (1.0,)},
        {"init": "secant"},
        {"weights": "identity"},
        {"update": "step"},
        {"iterations": 5},
        {"seeds": (0, 2)},
        {"batch": 4},
        {"state_size": 6},
        {"optimizers": (("sgd", 0.1),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_part_of_the_key(entry, change):
    assert dataclasses.replace(entry, **change).key != entry.key


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 0},
        {"seeds": ()},
        {"seeds": (1, 1)},
        {"seeds": (-1,)},
        {"seeds": (10**23,)},
        {"seeds": (0.5,)},
        {"optimizers": ()},
        {"optimizers": (("sgd", "a"),)},
        {"optimizers": (("sgd", float("inf")),)},
        {"optimizers": (("rmsprop", 0.1),)},
        {"clips": (0.0,)},
        {"weights": "foo"},
        {"update": "foo"},
        {"varied": ({"rho": 0.9}, {"margin": 0.1})},
    ],
    ids=str,
)
def test_entries_that_cannot_be_trained_are_refused(entry, change):
    with pytest.raises(ConfigError):
        dataclasses.replace(entry, **change)


@pytest.mark.parametrize("preset", PRESETS)
def test_entries_of_a_preset_have_keys_of_their_own(preset):
    keys = [entry.key for entry in chosen_entries(preset)]
    assert len({*keys}) == len(keys)


def test_rules_are_compared_under_the_same_conditions():
    entries = chosen_entries("tuned")
    for task in {entry.task_label for entry in entries}:
        same = [entry for entry in entries if entry.task_label == task]
        assert all({*entry.optimizers} <= {*same[0].optimizers} for entry in same)
        fields = ("task_options", "iterations", "batch", "state_size", "seeds", "init", "weights", "update")
        assert all(getattr(entry, name) == getattr(same[0], name) for entry in same for name in fields)
        assert {clip for entry in same if entry.rule == "COLA" for clip in entry.clips} == {
            clip for entry in same if entry.rule == "TBPTT1" for clip in entry.clips
        }


def test_every_rule_of_a_condition_is_tried_with_the_same_bounds_of_the_norm():
    entries = chosen_entries("tuned")
    for task in {entry.task_label for entry in entries}:
        bounds = {}
        for entry in entries:
            if entry.task_label == task:
                bounds.setdefault(entry.rule_label, set()).update(entry.clips)
        assert len({frozenset(each) for each in bounds.values()}) == 1


def test_entries_that_results_have_been_kept_of_keep_their_keys():
    keys = [entry.key for entry in chosen_entries("tuned")]
    kept = {0: "d6ff7a1a82b03f80", 8: "80cf347fc92a18dc", 9: "a6771bf547b2efcc", 10: "5dfb53cf45f2f61f", 79: "83dfa1310c3e7d6f"}
    assert {place: keys[place] for place in kept} == kept
    assert len(keys) == 95


def test_networks_of_other_seeds_are_another_condition(entry):
    assert "seeds 0, 1)" in entry.task_label
    assert "seeds 2 to 6)" in dataclasses.replace(entry, seeds=(2, 3, 4, 5, 6)).task_label
    assert "seed 7)" in dataclasses.replace(entry, seeds=(7,)).task_label


def test_a_part_of_a_preset_can_be_chosen():
    found = chosen_entries("tuned", rules=["COLA"], tasks=["adding:0.5", "lorenz"], seeds=[7], changes={"iterations": 3})
    assert {entry.rule for entry in found} == {"COLA"}
    assert {(entry.task, entry.task_options["placement"]) for entry in found} == {("adding", 0.5), ("lorenz", "every"), ("lorenz", 0.25)}
    assert all(entry.seeds == (7,) and entry.iterations == 3 for entry in found)


def test_a_choice_of_nothing_names_what_there_is():
    with pytest.raises(ConfigError, match="no entry for the rules Nobody; it has COLA, TBPTT1"):
        chosen_entries("smoke", rules=["COLA", "Nobody"])
    with pytest.raises(ConfigError, match=r"no entry for the tasks addign; it has adding, adding:0\.5, adding:every"):
        chosen_entries("smoke", tasks=["adding:every", "addign"])


def test_a_grid_lists_rates_by_algorithm():
    assert grid(sgd=(1.0,), adam=(0.1, 0.2)) == (("adam", 0.1), ("adam", 0.2), ("sgd", 1.0))
