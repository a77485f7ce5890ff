"""Tables on the terminal and in Markdown, and the JSON with every raw number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable


@dataclass
class Table:
    """A title, column heads and rows of text."""

    title: str
    heads: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Append a row."""
        self.rows.append([str(cell) for cell in cells])

    def markdown(self) -> str:
        """The table in Markdown, its title in bold above it."""
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.heads) + " |", "|" + " --- |" * len(self.heads)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])

    def print_to(self, console: Console) -> None:
        """The table on the terminal."""
        rich = RichTable(title=self.title, title_justify="left")
        for head in self.heads:
            rich.add_column(head)
        for row in self.rows:
            rich.add_row(*row)
        console.print(rich)


def publish(tables: Sequence[Table], results: dict[str, Any], console: Console, json_path: Path | None) -> None:
    """Print the tables; with a path, write the JSON there and the tables beside it with the suffix `.md`."""
    for table in tables:
        table.print_to(console)
    if json_path is None:
        return
    json_path.parent.mkdir(parents=True, exist_ok=True)
    # One line a list of numbers: a file that a person can look through.
    text = re.sub(r"\[[\s\d.,e-]+\]", lambda found: " ".join(found.group().split()), json.dumps(results, indent=1))
    json_path.write_text(text + "\n")
    markdown = json_path.with_suffix(".md")
    origin = " · ".join(f"{key}: {value}" for key, value in results["machine"].items())
    markdown.write_text("\n\n".join([origin, *(table.markdown() for table in tables)]) + "\n")
    console.print(f"raw numbers: {json_path}\ntables: {markdown}")


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """A bar that is drawn only when it is advanced: a thread that redraws it would take time from what is measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        yield bar


def ratio(numerator: float | None, denominator: float | None) -> str:
    """`3.4x`, or a dash where one of the two was not measured."""
    return f"{numerator / denominator:.2f}x" if numerator and denominator else "-"


def milliseconds(value: float | None) -> str:
    """A time with three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
