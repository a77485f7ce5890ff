from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pararnn.errors import ConfigError, UnknownNameError
from pararnn_cola import BPTT, COLA, TBPTT, TBPTT1, SnAp1
from pararnn_cola.criticality.gain import near_critical
from pararnn_cola.study.presets import TEN
from pararnn_cola.study.runner import LAST, rule_of, run_entry
from pararnn_cola.study.settings import Entry
from pararnn_cola.study.starts import Starts
from pararnn_cola.tasks import make


def by_hand(entry, seed, rule, configuration, options):
    """One network of an entry, trained by itself with torch's own optimizer: all losses, and the network."""
    task = make(entry.task, **entry.task_options)
    network = Starts().start(entry, task, seed).network
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[configuration.algorithm](network.parameters(), lr=configuration.lr)
    update = "step" if entry.update == "step" else "accumulate"
    learner = rule(network, loss=task.loss, optimizer=optimizer, update=update, clip=configuration.clip, **options)
    generator = torch.Generator().manual_seed(50 + seed)
    losses = []
    for _ in range(entry.iterations):
        batch = task.batch(entry.batch, generator)
        weights = (batch.weights > 0).float() if entry.update == "step" else batch.weights
        learner.init(entry.batch)
        found = [learner.step(u, y, w).loss for u, y, w in zip(batch.inputs.unbind(1), batch.targets.unbind(1), weights.tolist(), strict=True)]
        learner.apply()
        losses.append(float(sum(loss for loss in found if loss is not None)))
    return losses, network


RULES = [
    (COLA, {}, ({"rho": 0.9, "margin": 0.1}, {"rho": 0.99, "margin": 0.3})),
    (TBPTT1, {}, ({"hidden_gain": 1.0}, {"hidden_gain": 10.0})),
    (TBPTT, {"k1": 3}, ({},)),
    (BPTT, {}, ({},)),
    (SnAp1, {}, ({},)),
]
# BPTT moves weights after a sequence only.
CASES = [(*rule, update) for rule in RULES for update in ("sequence", "step") if not (rule[0] is BPTT and update == "step")]


@pytest.mark.parametrize(("rule", "fixed", "varied", "update"), CASES, ids=[f"{case[0].__name__}-{case[3]}" for case in CASES])
def test_every_run_of_an_entry_is_what_it_is_alone(small, rule, fixed, varied, update):
    small["task_options"] = {"length": 7, "placement": 0.5}
    entry = Entry(rule=rule.__name__, rule_options=fixed, varied=varied, clips=(0.05, None), update=update, **small)
    task = make(entry.task, **entry.task_options)
    for record in run_entry(entry):
        values = dict(record.configuration.values)
        if "rho" in values:
            values["rho_alpha"] = values["rho_mu"] = values.pop("rho")
        for place, seed in enumerate(entry.seeds):
            losses, network = by_hand(entry, seed, rule, record.configuration, fixed | values)
            assert record.train[place] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
            for name, value in task.evaluate(network).items():
                assert record.metrics[name][place] == pytest.approx(float(value), rel=1e-4)


def test_the_loss_of_training_is_a_mean_over_the_last_sequences(small):
    small.update(iterations=LAST + 7, optimizers=(("sgd", 0.1),), seeds=(3,))
    entry = Entry(rule="TBPTT1", **small)
    (record,) = run_entry(entry)
    losses, _ = by_hand(entry, 3, TBPTT1, record.configuration, {})
    assert record.train[0] == pytest.approx(sum(losses[-LAST:]) / LAST, rel=1e-5)
    assert record.curve[-1][0] == LAST + 7
    assert len(record.curve) == 40


def test_a_seed_gives_the_same_whatever_stands_beside_it(entry):
    alone = run_entry(dataclasses.replace(entry, seeds=(1,)))
    beside = run_entry(entry)
    assert [record.train[0] for record in alone] == pytest.approx([record.train[1] for record in beside], rel=1e-5)


def test_a_run_that_diverges_is_reported_and_leaves_the_others_alone(small):
    # Rates that overflow float32, without a bound.
    small.update(optimizers=(("sgd", 1e30), ("sgd", 0.1)), clips=(None,), iterations=8)
    wild, tame = run_entry(Entry(rule="TBPTT1", **small))
    (alone,) = run_entry(Entry(rule="TBPTT1", **{**small, "optimizers": (("sgd", 0.1),)}))
    assert wild.train == (math.inf, math.inf)
    assert wild.mean_train == math.inf
    assert all(map(math.isnan, wild.metrics["mse_last"]))
    assert tame.train == pytest.approx(alone.train, rel=1e-6)
    wild.to_json()


def test_first_weights_are_near_critical(small):
    entry = Entry(rule="COLA", **{**small, "state_size": 16, "task_options": {"length": 30}})
    task = make(entry.task, **entry.task_options)
    found = Starts().start(entry, task, 0)
    generator = torch.Generator().manual_seed(1000)
    plain = Starts().start(dataclasses.replace(entry, init="none"), task, 0).network
    # The generator has drawn W, U and V, and then the sequences that drive the network.
    for shape in ((16, 16), (16, 2), (1, 16)):
        torch.randn(shape, generator=generator)
    report = near_critical(plain, task.batch(4, generator).inputs, mode="two", probe=1.2, burn_in=0)
    assert found.gain == pytest.approx(report.gain)
    assert found.exponent == pytest.approx(report.exponent)
    assert torch.equal(found.network.recurrent[0].weight_hh, plain.recurrent[0].weight_hh)
    assert found.network.readout.weight.std() < 0.3


def test_a_number_is_the_largest_singular_value(small):
    entry = Entry(rule="COLA", init=0.7, **small)
    start = Starts().start(entry, make("adding", length=6), 0)
    assert float(start.network.recurrent[0].operator_norm()) == pytest.approx(0.7)


@pytest.mark.parametrize("kind", ["orthogonal", "identity"])
def test_recurrent_weights_have_the_form_that_was_asked_for(small, kind):
    entry = Entry(rule="COLA", init="none", weights=kind, **small)
    weight = Starts().start(entry, make("adding", length=6), 0).network.recurrent[0].weight_hh.detach()
    expected = torch.eye(5)
    close = weight @ weight.mT if kind == "orthogonal" else weight
    torch.testing.assert_close(close, expected, rtol=0, atol=1e-5 if kind == "orthogonal" else 0.3)


def test_weights_near_the_identity_train_without_a_warning(small):
    small["state_size"] = 16
    (record, *_) = run_entry(Entry(rule="COLA", weights="identity", **small))
    assert all(map(math.isfinite, record.train))


def test_progress_is_told_of_every_sequence(entry):
    seen = []
    run_entry(entry, on_sequence=seen.append)
    assert seen == [1, 2, 3, 4]


def test_cola_tells_its_coefficients(entry):
    for record in run_entry(entry):
        assert {*record.diagnostics} == {"alpha", "mu"}
        assert len(record.diagnostics["mu"]) == 2


def test_an_option_that_is_one_for_all_runs_cannot_be_varied(small):
    with pytest.raises(ConfigError, match=r"k1.*rule_options"):
        run_entry(Entry(rule="TBPTT", varied=({"k1": 2}, {"k1": 3}), **small))


def test_an_unknown_rule_is_refused_with_the_names_of_others(small):
    with pytest.raises(UnknownNameError, match="TBPTT1"):
        run_entry(Entry(rule="Hebb", **small))


@pytest.mark.parametrize("name", ["Learner", "StepResult", "Network"])
def test_what_is_no_rule_is_refused_and_not_among_the_names(name):
    with pytest.raises(UnknownNameError) as told:
        rule_of(name)
    assert {"COLA", "BPTT", "SnAp1"} <= {*str(told.value).rpartition("there are ")[2].split(", ")}
    assert not {"Learner", "StepResult"} & {*str(told.value).rpartition("there are ")[2].split(", ")}


@pytest.mark.parametrize(("rule", "options"), [("TBPTT", {}), ("COLA", {"foo": 1})])
def test_options_that_a_rule_does_not_take_are_refused(small, rule, options):
    with pytest.raises(ConfigError, match=rule):
        run_entry(Entry(rule=rule, rule_options=options, **small))


def test_ten_steps_are_cut_in_blocks():
    assert TEN["k1"] == TEN["k2"] == 10
