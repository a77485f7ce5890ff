"""`pararnn verify`: does what is installed keep the contract of cells, structures and backends?

Exit status 1 when a check failed. Progress goes to stderr, so that `--json` leaves stdout to the document.
"""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pararnn.cli.plugins import titled_table
from pararnn.conformance.report import CheckResult, ConformanceReport, Verdict
from pararnn.conformance.subjects import Subject, subjects_named

COLOURS = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_APPLICABLE: "dim"}


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
            console.print(_table(report), "")
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


def _table(report: ConformanceReport) -> Table:
    table = titled_table(escape(f"{report.subject}: {report.summary()}"), "check", "verdict", "seconds", "why")
    for result in report.results:
        verdict = f"[{COLOURS[result.verdict]}]{result.verdict}[/]"
        table.add_row(escape(result.check), verdict, f"{result.seconds:.1f}", escape(result.detail))
    return table


def _verdict(reports: list[ConformanceReport]) -> str:
    failed = [report for report in reports if not report.ok]
    if not failed:
        return f"{len(reports)} verified, no check failed."
    return f"{len(failed)} of {len(reports)} failed: {', '.join(report.subject for report in failed)}."
