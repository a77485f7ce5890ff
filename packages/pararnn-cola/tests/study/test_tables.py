from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics

import pytest

from pararnn_cola.study import table
from pararnn_cola.study.comparison import best_of, difference, left_out, paired
from pararnn_cola.study.presets import grid
from pararnn_cola.study.results import Record
from pararnn_cola.study.settings import Entry

RATES = (0.01, 0.1, 1.0)


def made(rule, varied, train, metric="mse_last", seeds=(0, 1, 2)):
    """Records of a rule; `train(values, lr, seed)` gives the loss, and the metric is ten times that."""
    entry = Entry(task="adding", rule=rule, varied=varied, optimizers=grid(sgd=RATES), seeds=seeds, iterations=1)
    found = []
    for one in entry.configurations():
        losses = tuple(train(dict(one.values), one.lr, seed) for seed in seeds)
        curve = ((1, statistics.fmean(losses)),)
        found.append(Record(entry=entry, configuration=one, train=losses, metrics={metric: tuple(10 * loss for loss in losses)}, curve=curve))
    return found


@pytest.fixture
def records():
    """COLA is 0.5 below TBPTT-1 with gain 1, and 0.1 above it with gain 10; the rate 0.1 is best."""

    def loss(offset, lr, seed):
        return 1 + offset + abs(math.log10(lr) + 1) + 0.01 * seed

    ours = made("COLA", ({"rho": 0.99, "margin": 0.1}, {"rho": 0.99, "margin": 0.3}), lambda values, lr, seed: loss(values["margin"], lr, seed))
    gains = ({"hidden_gain": 1.0}, {"hidden_gain": 10.0})
    return ours + made("TBPTT1", gains, lambda values, lr, seed: loss(0.6 if values["hidden_gain"] == 1 else 0.0, lr, seed))


def test_the_best_has_the_lowest_mean_loss_of_training(records):
    best = best_of(records[:6])
    assert (best.record.configuration.lr, best.record.configuration.values["margin"], best.tried) == (0.1, 0.1, 6)


def test_an_optimum_at_the_end_of_a_range_is_marked():
    falling = best_of(made("COLA", ({"margin": 0.1}, {"margin": 0.3}), lambda values, lr, seed: 1 / lr))
    inside = best_of(made("COLA", ({"margin": 0.1},), lambda values, lr, seed: abs(math.log10(lr) + 1)))
    assert falling.edges == ("lr 1", "margin 0.1")
    assert inside.edges == ()


def test_a_diverged_rate_beyond_the_optimum_bounds_it():
    best = best_of(made("COLA", ({},), lambda values, lr, seed: math.inf if lr == 1 else 1 / lr))
    assert best.record.configuration.lr == 0.1
    assert best.edges == ()


def test_one_diverged_seed_spoils_a_configuration():
    best = best_of(made("COLA", ({},), lambda values, lr, seed: math.inf if lr == 1 and seed == 2 else 1 / lr))
    assert best.record.configuration.lr == 0.1
    assert best_of(made("COLA", ({},), lambda values, lr, seed: math.inf)) is None


def test_a_difference_has_the_standard_error_of_pairs():
    found = difference("train", [1.0, 2.0, 4.0], [2.0, 2.5, 4.1])
    each = [-1.0, -0.5, -0.1]
    assert found.mean == pytest.approx(statistics.fmean(each))
    assert found.error == pytest.approx(statistics.stdev(each) / math.sqrt(3))
    assert (found.wins, found.seeds, found.verdict) == (3, 3, "no difference")


@pytest.mark.parametrize(
    ("metric", "first", "verdict", "wins"),
    [("mse_last", 1.0, "better", 5), ("mse_last", 3.0, "worse", 0), ("accuracy", 3.0, "better", 5), ("valid_steps", 1.0, "worse", 0)],
)
def test_better_is_less_of_an_error_and_more_of_an_accuracy(metric, first, verdict, wins):
    found = difference(metric, [first + 0.01 * seed for seed in range(5)], [2.0] * 5)
    assert (found.verdict, found.wins) == (verdict, wins)


def test_one_seed_tells_nothing():
    found = difference("train", [1.0], [2.0])
    assert found.verdict == "unknown"
    assert math.isnan(found.error)


def test_the_deviation_of_one_seed_is_not_known():
    text = table.markdown(made("COLA", ({},), lambda values, lr, seed: lr, seeds=(3,)))
    assert "| COLA | sgd | 0.01 | 0.1 | lr 0.01" in text


def test_differences_of_rounding_are_none():
    first = [0.7 + 0.1 * seed for seed in range(5)]
    second = [value - 1e-8 for value in first]
    assert difference("train", first, second).verdict == "equal"
    assert difference("train", first, first).verdict == "equal"
    assert difference("train", [0.0] * 3, [0.0] * 3).verdict == "equal"
    # Small ones that rounding does not explain count, and one seed with a real difference is enough.
    assert difference("train", [1e-9 * value for value in first], [1e-9 * (value + 0.1) for value in first]).verdict == "better"
    assert difference("train", first, [*second[:-1], 0.5]).verdict == "no difference"


@pytest.mark.parametrize("first", [[math.inf, 1.0], [-math.inf, 1.0], [math.nan, 1.0], [math.inf, math.inf]], ids=str)
def test_what_diverged_is_not_equal_to_anything(first):
    assert difference("train", first, [1.0, 1.0]).verdict == "unknown"
    assert difference("train", first, first).verdict == "unknown"


def test_the_interval_is_that_of_a_paired_t_test():
    stats = pytest.importorskip("scipy.stats")
    generator = random.Random(0)
    for seeds in (*range(2, 32), 60):
        for _ in range(20):
            first, second = ([generator.gauss(shift, 1) for _ in range(seeds)] for shift in (0.0, 0.6))
            found = difference("train", first, second)
            test = stats.ttest_rel(first, second)
            expected = "no difference" if test.pvalue > 0.05 else "better" if test.statistic < 0 else "worse"
            assert found.verdict == expected or (seeds > 31 and 0.045 < test.pvalue <= 0.05)


def test_a_rule_that_diverged_throughout_is_told_and_compared_with_nothing(records):
    spoilt = made("TBPTT1", ({"hidden_gain": 1.0},), lambda values, lr, seed: math.inf)
    theirs = [record for record in records if record.entry.rule == "COLA"]
    assert left_out("train", theirs, spoilt) is None
    assert not table.duels(theirs + spoilt)
    text = table.markdown(theirs + spoilt)
    assert "Diverged with all of its configurations: TBPTT1 (sgd) on adding" in text
    assert "nan" not in text
    assert table.to_dict(theirs + spoilt)["diverged"] == [
        {"task": spoilt[0].entry.task_label, "algorithm": "sgd", "rule": "TBPTT1", "tried": len(spoilt)}
    ]


def test_a_metric_that_one_rule_lacks_is_not_compared(records):
    theirs = made("TBPTT1", ({"hidden_gain": 1.0},), lambda values, lr, seed: lr, metric="accuracy")
    ours = [record for record in records if record.entry.rule == "COLA"]
    assert {one.metric: one.verdict for one in table.duels(ours + theirs)[0].differences}["mse_last"] == "unknown"
    assert "not finite" in table.markdown(ours + theirs)


def test_seeds_of_another_call_are_a_condition_of_their_own(records):
    lucky = made("COLA", ({"rho": 0.99, "margin": 0.1},), lambda values, lr, seed: 1e-3, seeds=(7,))
    before, after = table.to_dict(records), table.to_dict(records + lucky)
    assert after["duels"] == before["duels"]
    assert after["best"][: len(before["best"])] == before["best"]
    assert len(after["best"]) == len(before["best"]) + 1


def test_what_the_tables_do_not_show_is_said_in_a_sentence_each(records):
    (note,) = table.notes(records)
    assert "unequal numbers" in note
    assert "chosen by the other seeds" in note
    changes = ({"task_options": {"placement": "last"}}, {"update": "step"})
    last, step = ([dataclasses.replace(record, entry=dataclasses.replace(record.entry, **change)) for record in records] for change in changes)
    assert "COLA is TBPTT-1 with gain 1" in table.notes(last)[1]
    assert "sum over the steps, each with weight 1" in table.notes(step)[1]
    text = table.markdown(last + step)
    assert all(note in text for note in table.notes(last + step))
    assert table.to_dict(last + step)["notes"] == table.notes(last + step)
    assert len(table.notes(last + step)) == 3


def test_only_seeds_that_both_have_are_paired():
    ours = made("COLA", ({},), lambda values, lr, seed: seed, seeds=(0, 1, 2))[0]
    theirs = made("TBPTT1", ({},), lambda values, lr, seed: 10 * seed, seeds=(2, 1, 5))[0]
    found = paired("train", ours, theirs)
    assert found.seeds == 2
    assert found.mean == pytest.approx(((1 - 10) + (2 - 20)) / 2)


def test_rules_without_a_common_seed_cannot_be_told_apart():
    ours = made("COLA", ({},), lambda values, lr, seed: seed, seeds=(0, 1))
    theirs = made("TBPTT1", ({},), lambda values, lr, seed: seed, seeds=(2, 3))
    assert paired("train", ours[0], theirs[0]).verdict == "unknown"
    assert not table.duels(ours + theirs)


def test_networks_of_another_size_are_not_compared():
    ours = made("COLA", ({},), lambda values, lr, seed: seed)
    theirs = made("TBPTT1", ({},), lambda values, lr, seed: seed)
    larger = [dataclasses.replace(record, entry=dataclasses.replace(record.entry, state_size=128)) for record in theirs]
    assert table.duels(ours + theirs)
    assert not table.duels(ours + larger)


def test_luck_in_the_choice_does_not_count_where_the_other_seeds_choose():
    # Many configurations that are good on one seed each: the best looks better than the rival, whose configurations are all alike.
    values = tuple({"margin": 0.1 * (number + 1)} for number in range(3))
    ours = made("COLA", values, lambda found, lr, seed: 0.0 if round(10 * found["margin"]) - 1 == seed else 3.0)
    theirs = made("TBPTT1", ({},), lambda found, lr, seed: 2.5)
    assert paired("train", best_of(ours).record, best_of(theirs).record).mean < 0
    assert left_out("train", ours, theirs).mean == pytest.approx(0.5)


def test_cola_meets_its_rival_at_gain_one_and_at_the_best_gain(records):
    means = {duel.choice: duel.differences[0].mean for duel in table.duels(records)}
    assert means == pytest.approx(
        {
            "published COLA, gain 1": -0.5,
            "best COLA, gain 1": -0.5,
            "best COLA, best gain": 0.1,
            "best COLA, best gain, chosen by the other seeds": 0.1,
        }
    )


def test_bounds_of_the_norm_that_both_were_trained_with_are_compared_one_by_one(records):
    # Without a bound COLA is better by 10 at every setting, and with one they are as before.
    loose = []
    for record in records:
        entry = dataclasses.replace(record.entry, clips=(None,))
        better = 10.0 if record.entry.rule == "COLA" else 0.0
        train = tuple(loss - better for loss in record.train)
        loose.append(dataclasses.replace(record, entry=entry, configuration=dataclasses.replace(record.configuration, clip=None), train=train))
    means = {duel.choice: duel.differences[0].mean for duel in table.duels(records + loose)}
    for choice, mean in {"": -9.9, ", clip 1": 0.1, ", no clip": -9.9}.items():
        assert means[f"best COLA, best gain{choice}"] == pytest.approx(mean)
        assert means[f"best COLA, best gain{choice}, chosen by the other seeds"] == pytest.approx(mean)
    assert not any("clip" in duel.choice for duel in table.duels(records))


def test_the_markdown_has_a_row_a_rule_with_means_and_deviations(records):
    text = table.markdown(records)
    losses = [1.1, 1.11, 1.12]
    assert f"| COLA | sgd | {statistics.fmean(losses):.4g} ± {statistics.stdev(losses):.2g} |" in text
    assert "lr 0.1, rho 0.99, margin 0.1, clip 1 | margin 0.1 | 3 | 6 |" in text
    assert "(3 of 3): better" in text
    assert "(0 of 3): worse" in text


def test_tables_for_programs_are_strict_json(records):
    spoilt = made("BPTT", ({},), lambda values, lr, seed: math.inf)
    plain = json.loads(json.dumps(table.to_dict(records + spoilt), allow_nan=False))
    assert [row["rule"] for row in plain["best"]] == ["COLA", "TBPTT1"]
    assert len(plain["variants"]) == 4
    assert len(plain["duels"]) == 4


def test_a_table_of_nothing_says_so():
    assert "Nothing" in table.markdown([])
