"""The outcome as plain data, as tables, and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from pararnn.distributions import core_version
from pararnn.verify import AgreementReport
from pararnn_cfc.demo.comparison import Comparison
from pararnn_cfc.demo.evaluation import LINEAR, NETWORK, Evaluation
from pararnn_cfc.demo.extras import extra
from pararnn_cfc.demo.model import Forecaster
from pararnn_cfc.demo.plots import draw_data, draw_forecast, draw_speed, draw_training
from pararnn_cfc.demo.scores import Score
from pararnn_cfc.demo.task import ForecastTask
from pararnn_cfc.demo.training import TrainingConfig, TrainingRecord

SHOWN_HORIZONS = (1, 4, 13, 26)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that a run of the demonstration found out; `evaluations` by the name of their condition."""

    config: TrainingConfig
    task: ForecastTask
    forecaster: Forecaster
    record: TrainingRecord
    agreement: AgreementReport
    comparison: Comparison
    evaluations: Mapping[str, Evaluation]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        task = self.task
        return {
            "config": asdict(self.config),
            "versions": {"pararnn-core": core_version(), "torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "data": {
                "samples": len(task.series),
                "missing_weeks": task.series.missing,
                "missing_test_weeks": task.series.take(task.series.weeks >= task.test_start).missing,
                "longest_gap_weeks": int(task.series.gaps.max()),
                "unit_of_time_gaps": "weeks",
                "first_day": task.series.start.isoformat(),
                "validation_from": task.series.day(task.validation_start).isoformat(),
                "test_from": task.series.day(task.test_start).isoformat(),
                "last_day": task.series.day(int(task.series.weeks[-1])).isoformat(),
            },
            "training": asdict(self.record),
            "agreement": self.agreement.to_dict(),
            "comparison": asdict(self.comparison) | {"speedup": self.comparison.speedup, "loss_difference": self.comparison.loss_difference},
            "test": {
                condition: {
                    "unit": "ppm",
                    "linear_lags": evaluation.linear_lags,
                    "linear_ridge": evaluation.linear_ridge,
                    "scores": {name: asdict(score) for name, score in evaluation.scores.items()},
                }
                for condition, evaluation in self.evaluations.items()
            },
            "seconds": self.seconds,
        }

    def tables(self) -> Iterable[Table]:
        """What a reader wants to know, to be printed."""
        yield _comparison_table(self.comparison, self.agreement)
        for condition, evaluation in self.evaluations.items():
            yield _score_table(f"Error on the test years, in ppm; {condition}", evaluation.scores)

    def verdicts(self) -> Iterable[str]:
        """How the network compares with the linear model, whichever is better."""
        for condition, evaluation in self.evaluations.items():
            ours, linear = evaluation.scores[NETWORK].rmse, evaluation.scores[LINEAR].rmse
            word = "below" if ours < linear else "above"
            yield (
                f"{condition}: the RMSE of {NETWORK} is {abs(ours / linear - 1):.1%} {word} that of the linear model, "
                f"which sees the last {evaluation.linear_lags} samples."
            )

    def save(self, folder: Path) -> dict[str, Path]:
        """Write weights, results and plots into `folder`; gives their paths by what they hold."""
        files = {
            "weights": folder / "forecaster.safetensors",
            "results": folder / "results.json",
            "plot of the data": folder / "data.png",
            "plot of forecast and error": folder / "forecast.png",
            "plot of the training": folder / "training.png",
            "plot of the time taken": folder / "speed.png",
        }
        extra("safetensors.torch").save_file(self.forecaster.state_dict(), files["weights"])
        files["results"].write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        draw_data(self.task, files["plot of the data"])
        draw_forecast(self.task, next(iter(self.evaluations.values())), files["plot of forecast and error"])
        draw_training(self.record, files["plot of the training"])
        draw_speed(self.comparison, files["plot of the time taken"])
        return files


def _comparison_table(comparison: Comparison, agreement: AgreementReport) -> Table:
    batch, time = comparison.shape
    table = Table(title=f"Parallel over time against the loop, batch {batch}, {time} steps of time", title_justify="left")
    for heading in ("", "parallel", "loop", "comparison"):
        table.add_column(heading, justify="left" if heading in ("", "comparison") else "right")
    table.add_row(
        "training step",
        f"{1000 * comparison.parallel_seconds:.0f} ms",
        f"{1000 * comparison.loop_seconds:.0f} ms",
        f"the loop takes {comparison.speedup:.1f} times as long",
    )
    table.add_row(
        f"loss after {len(comparison.loop_losses) - 1} steps (ppm²)",
        f"{comparison.parallel_losses[-1]:.6f}",
        f"{comparison.loop_losses[-1]:.6f}",
        f"relative difference at most {comparison.loss_difference:.0e}" if comparison.loss_difference else "the same to the last digit",
    )
    table.add_row("loss of the trained weights (ppm²)", f"{comparison.parallel_loss:.6f}", f"{comparison.loop_loss:.6f}", "")
    verdict = "agree" if agreement.ok else "do NOT agree"
    table.add_row("states", "", "", f"{verdict}: differ by at most {agreement.max_abs:.0e} (allowed {agreement.atol:.0e})")
    worst = max(agreement.gradients.values())
    table.add_row("gradients", "", "", f"{verdict}: differ by at most {worst:.0e} of their size (allowed {agreement.gradient_tolerance:.0e})")
    return table


def _score_table(title: str, scores: Mapping[str, Score]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for horizon in SHOWN_HORIZONS:
        table.add_column(f"RMSE\n{horizon} week{'s' if horizon > 1 else ''}", justify="right")
    table.add_column("RMSE\nall", justify="right")
    table.add_column("MAE\nall", justify="right")
    best = min(score.rmse for score in scores.values())
    for name, score in scores.items():
        numbers = [*(score.rmse_by_horizon[horizon - 1] for horizon in SHOWN_HORIZONS), score.rmse, score.mae]
        table.add_row(name, *(f"{number:.3f}" for number in numbers), style="bold" if score.rmse == best else None)
    return table
