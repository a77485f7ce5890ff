"""`pararnn cola-study`: train rules, tasks and seeds of a preset, go on where an earlier call stopped, and write the tables."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pararnn.errors import ConfigError
from pararnn_cola.study import results, table
from pararnn_cola.study.plots import draw_study
from pararnn_cola.study.presets import PRESETS, chosen_entries
from pararnn_cola.study.results import Record
from pararnn_cola.study.runner import run_entry
from pararnn_cola.study.settings import Entry
from pararnn_cola.study.starts import Starts

RESULTS = "results.jsonl"
EVERY = 10
"""Sequences between two updates of the progress bar."""


def listed(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """The parts between commas."""
    parts = tuple(part.strip() for part in value.split(",") if part.strip())
    if value and not parts:
        raise click.BadParameter(f"{value!r} names nothing; leave the option out for all there are", ctx, param)
    return parts


def limited(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A number of minutes."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number of minutes", ctx, param)
    return value


def listed_numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """The whole numbers between commas."""
    try:
        return tuple(map(int, listed(ctx, param, value)))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of whole numbers with commas between them", ctx, param) from error


@click.command(name="cola-study")
@click.argument("preset", default="smoke", type=click.Choice([*PRESETS]))
@click.option("--out", default=Path("cola-study"), show_default=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...; auto: cuda where there is one.")
@click.option("--rules", default="", metavar="A,B,...", callback=listed, help="Only these, such as COLA,TBPTT1.")
@click.option("--tasks", default="", metavar="A,B,...", callback=listed, help="Only these, such as adding,lorenz:every,adding:0.5.")
@click.option("--seeds", default="", metavar="1,2,...", callback=listed_numbers, help="These instead of the preset's, such as 0,1,2.")
@click.option("--iterations", default=None, type=click.IntRange(1), help="Sequences that each network sees, instead of the preset's number.")
@click.option("--minutes", default=None, type=click.FloatRange(0), callback=limited, help="Begin no further entry after so many.")
@click.option("--no-graph", is_flag=True, help="On a GPU, launch each kernel instead of replaying a CUDA graph.")
@click.option("--list", "list_only", is_flag=True, help="List the entries, and which of them are done, and train nothing.")
@click.option("--table-only", is_flag=True, help="Make the tables of all *.jsonl in the folder, and train nothing.")
@click.option("--plots", is_flag=True, help="Draw pictures too; needs matplotlib.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else on stdout.")
def cola_study(
    preset: str,
    out: Path,
    device: str,
    rules: tuple[str, ...],
    tasks: tuple[str, ...],
    seeds: tuple[int, ...],
    iterations: int | None,
    minutes: float | None,
    no_graph: bool,
    list_only: bool,
    table_only: bool,
    plots: bool,
    as_json: bool,
) -> None:
    """Compare online learning rules, over tasks, rates and seeds, with the configurations of PRESET.

    Results go to results.jsonl in the folder, one entry at a time; entries that are there already are passed over. Configurations are chosen by
    their loss of training, and what they are worth is measured on other data.
    """
    changes = {} if iterations is None else {"iterations": iterations}
    entries = chosen_entries(preset, rules=rules, tasks=tasks, seeds=seeds, changes=changes)
    if list_only:
        _list(entries, out, as_json=as_json)
        return
    if not table_only:
        _train(entries, out, _device(device), graph=not no_graph, minutes=minutes, silent=as_json)
    records = _all_records(out)
    files = _write(records, out, plots=plots)
    if as_json:
        left = {entry.key for entry in entries} - {record.entry.key for record in records}
        click.echo(json.dumps(table.to_dict(records) | {"entries_left": len(left), "files": [str(path) for path in files]}, indent=2))
    else:
        click.echo(table.markdown(records))
        click.echo(f"Saved: {', '.join(str(path) for path in files)}")


def _list(entries: Sequence[Entry], out: Path, *, as_json: bool) -> None:
    done = {record.entry.key for record in _all_records(out)}
    if as_json:
        click.echo(json.dumps([{"key": entry.key, "done": entry.key in done, "entry": entry.to_dict()} for entry in entries], indent=2))
    else:
        for entry in entries:
            click.echo(f"{'done' if entry.key in done else 'to do'}  {entry.describe()}")


def _train(entries: Sequence[Entry], out: Path, device: torch.device, *, graph: bool, minutes: float | None, silent: bool) -> None:
    _check_writable(out)
    done = {record.entry.key for record in _all_records(out)}
    left = [entry for entry in entries if entry.key not in done]
    began, starts = time.monotonic(), Starts()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as progress:
        overall = progress.add_task("entries", total=len(left))
        current = progress.add_task("sequences")
        for number, entry in enumerate(left):
            if minutes is not None and time.monotonic() - began > 60 * minutes:
                click.echo(f"{len(left) - number} entries are left after {minutes:g} minutes; the same call goes on with them", err=True)
                return
            progress.reset(current, total=entry.iterations, description=f"{entry.rule_label} on {entry.task_label}")

            def advance(seen: int, entry: Entry = entry) -> None:
                if seen % EVERY == 0 or seen == entry.iterations:
                    progress.update(current, completed=seen)

            records = run_entry(entry, starts=starts, device=device, graph=graph, on_sequence=advance)
            results.append(out / RESULTS, records)
            progress.advance(overall)
            if not silent:
                click.echo(f"{records[0].facts['seconds']:.1f} s  {entry.describe()}", err=True)


def _check_writable(out: Path) -> None:
    """Raise before anything is trained if results could not be kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error}); choose another folder") from error


def _all_records(out: Path) -> list[Record]:
    """The records of every file in the folder, so that parts that were trained on several machines make one table."""
    found = {}
    for path in sorted(out.glob("*.jsonl")):
        for record in results.load(path):
            found[record.entry.key, repr(record.configuration)] = record
    return list(found.values())


def _write(records: Sequence[Record], out: Path, *, plots: bool) -> list[Path]:
    written = {out / "table.md": table.markdown(records), out / "table.json": json.dumps(table.to_dict(records), indent=2)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            path.write_text(text)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error}); choose another folder") from error
    return [*written, *(draw_study(records, out / "plots") if plots else [])]


def _device(choice: str) -> torch.device:
    if choice == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(choice)
    except RuntimeError as error:
        raise ConfigError(f"--device {choice} is no device of torch: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {choice}: torch {torch.__version__} sees no CUDA device; leave --device out to use the CPU")
    return device
