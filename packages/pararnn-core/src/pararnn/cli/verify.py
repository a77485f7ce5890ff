"""`pararnn verify`: does what is installed keep the contract of cells, structures and backends?

Exit status 1 when a check failed. Progress goes to stderr, so that `--json` leaves stdout to the document.
"""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pararnn.cli.plugins import titled_table
from pararnn.conformance.report import CheckResult, ConformanceReport, Verdict
from pararnn.conformance.subjects import Subject, subjects_named

COLOURS = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_APPLICABLE: "dim", Verdict.NOT_RUN: "yellow"}


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
@click.option("--seed", default=0, show_default=True, help="Where the checks start their random numbers from.")
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], json_only: bool, seed: int) -> None:
    """Run the conformance checks on a cell, a structure or a backend.

    NAME is a cell, a structure, a backend as `operation:name`, or `all`; `pararnn plugins` lists them.
    """
    subjects = {subject: None for name in names for subject in subjects_named(name)}
    reports = _run(tuple(subjects), seed=seed, silent=json_only)
    ok = all(report.ok for report in reports)
    if json_only:
        click.echo(json.dumps({"ok": ok, "seed": seed, "reports": [report.to_dict() for report in reports]}, indent=2))
    else:
        console = Console()
        for report in reports:
            _show(report, console)
        console.print(_verdict(reports), style="bold", markup=False, highlight=False)
    ctx.exit(0 if ok else 1)


def _run(subjects: tuple[Subject, ...], *, seed: int, silent: bool) -> list[ConformanceReport]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    reports = []
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as progress:
        task = progress.add_task("verifying", total=sum(len(subject.checks(seed=seed)) for subject in subjects))

        def advance(result: CheckResult) -> None:
            progress.advance(task)

        for subject in subjects:
            progress.update(task, description=f"verifying {escape(subject.label)}")
            reports.append(subject.verify(seed=seed, on_result=advance))
    return reports


def _show(report: ConformanceReport, console: Console) -> None:
    """A table of verdicts, and below it every cause once, in full width."""
    columns = ("check", "verdict", "seconds")
    table = titled_table(escape(f"{report.subject}: {report.summary()}"), *columns, whole=columns)
    for result in report.results:
        table.add_row(escape(result.check), f"[{COLOURS[result.verdict]}]{result.verdict}[/]", f"{result.seconds:.1f}")
    console.print(table)
    if told := report.told():
        console.print(told, style="red", markup=False, highlight=False)
    for (verdict, reason), checks in _idle(report).items():
        console.print(f"  {verdict}: {', '.join(checks)} ({reason})", style=COLOURS[verdict], markup=False, highlight=False)
    console.print()


def _idle(report: ConformanceReport) -> dict[tuple[Verdict, str], list[str]]:
    """The checks that found nothing to check, or were not run, by why."""
    idle: dict[tuple[Verdict, str], list[str]] = {}
    for result in report.results:
        if result.verdict in (Verdict.NOT_APPLICABLE, Verdict.NOT_RUN):
            idle.setdefault((result.verdict, result.detail), []).append(result.check)
    return idle


def _verdict(reports: list[ConformanceReport]) -> str:
    failed = [report for report in reports if not report.ok]
    if not failed:
        return f"{len(reports)} verified, no check failed."
    return f"{len(failed)} of {len(reports)} failed: {', '.join(report.subject for report in failed)}."
