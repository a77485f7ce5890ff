"""`pararnn demo`: train on a real series with gaps, compare with the loop and with simple forecasts, and save what came out."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pararnn.errors import ConfigError
from pararnn.verify import verify_agreement
from pararnn_cfc.demo.comparison import compare
from pararnn_cfc.demo.evaluation import CONDITIONS, evaluate
from pararnn_cfc.demo.extras import extra
from pararnn_cfc.demo.report import Outcome
from pararnn_cfc.demo.series import load_mauna_loa
from pararnn_cfc.demo.task import ForecastTask
from pararnn_cfc.demo.training import TrainingConfig, build, train

STAGES = 2 + len(CONDITIONS)


@click.command()
@click.option("--epochs", default=200, show_default=True, type=click.IntRange(1), help="Training steps; each reads four thinned training histories.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of weights and of the weeks that are dropped while training.")
@click.option(
    "--output",
    default=Path("pararnn-demo"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for weights, results and plots; made if it is not there.",
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads for torch; for tensors as small as here one is best.")
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
def demo(epochs: int, seed: int, output: Path, threads: int, json_only: bool) -> None:
    """Forecast CO2 at Mauna Loa, 1 to 26 weeks ahead, from the weeks that were measured.

    Trains a ParaCfC in parallel over time, compares it with the loop (time, states, gradients, loss) and, on the years after training, with
    persistence and a linear model.
    """
    for module in ("statsmodels.datasets.co2", "matplotlib.figure", "safetensors.torch"):
        extra(module)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be made ({error}); choose another folder") from error
    with _threads(threads):
        outcome = _run(TrainingConfig(epochs=epochs, seed=seed), Console(stderr=True), silent=json_only)
        files = outcome.save(output)
        if json_only:
            click.echo(json.dumps(outcome.to_dict() | {"files": {content: str(path) for content, path in files.items()}}, indent=2))
        else:
            _show(outcome, files, Console())


def _run(config: TrainingConfig, console: Console, *, silent: bool) -> Outcome:
    began = time.perf_counter()
    task = ForecastTask.of(load_mauna_loa())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        untrained = build(task, config)
        forecaster = copy.deepcopy(untrained)
        steps = progress.add_task("training", total=config.epochs)

        def advance(epoch: int, loss: float) -> None:
            progress.update(steps, completed=epoch, description=f"training, RMSE {loss**0.5:.3f} ppm")

        record = train(forecaster, task, config, on_epoch=advance)
        stages = progress.add_task("comparing with the loop", total=STAGES)
        comparison = compare(untrained, forecaster, task, config)
        progress.advance(stages)
        agreement = verify_agreement(forecaster, task.inputs(task.training).unsqueeze(0))
        progress.update(stages, advance=1, description="forecasting the test years")
        evaluations = {}
        for condition, kept_share in CONDITIONS.items():
            evaluations[condition] = evaluate(forecaster, task, config, kept_share=kept_share)
            progress.advance(stages)
    return Outcome(
        config=config,
        task=task,
        forecaster=forecaster,
        record=record,
        agreement=agreement,
        comparison=comparison,
        evaluations=evaluations,
        seconds=time.perf_counter() - began,
    )


def _show(outcome: Outcome, files: dict[str, Path], console: Console) -> None:
    series, task = outcome.task.series, outcome.task
    missing_test_weeks = series.take(series.weeks >= task.test_start).missing
    console.print(
        f"CO2 at Mauna Loa, {series.start} to {series.day(int(series.weeks[-1]))}: {len(series)} weeks measured, {series.missing} missing "
        f"({missing_test_weeks} of them in the test years), longest gap {int(series.gaps.max())} weeks. "
        f"Training before {series.day(task.validation_start)}, test from {series.day(task.test_start)}. "
        "Time gaps are given to the network in weeks.\n",
        highlight=False,
    )
    for table in outcome.tables():
        console.print(table, "")
    for verdict in outcome.verdicts():
        console.print(verdict, style="bold", highlight=False)
    console.print(f"\n{outcome.seconds:.0f} s. Saved:", highlight=False)
    for content, path in files.items():
        click.echo(f"  {content}: {path}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
