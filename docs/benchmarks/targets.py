"""What ParaCfC is meant to reach on a CPU with two threads and plain torch, as ratios of one run, and whether a run reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from report import Table
from worker import BOTH, FORWARD, Case


@dataclass(frozen=True)
class Target:
    """The time of `other` divided by ours must be at least `at_least`."""

    case: Case
    what: str
    other: str
    at_least: float


TARGETS = (
    Target(Case(1, 65536, 16), FORWARD, "loop", 50),
    Target(Case(1, 16384, 64), FORWARD, "loop", 20),
    Target(Case(8, 4096, 64), FORWARD, "loop", 3),
    Target(Case(32, 1024, 128), FORWARD, "loop", 1),
    Target(Case(8, 4096, 64), BOTH, "loop", 6),
    Target(Case(8, 4096, 64), FORWARD, "pararnn-torch", 3),
    Target(Case(8, 4096, 64), BOTH, "pararnn-torch", 2.5),
    Target(Case(1, 65536, 16), FORWARD, "pararnn-torch", 3),
    Target(Case(1, 65536, 16), BOTH, "pararnn-torch", 2.5),
    Target(Case(32, 1024, 128), FORWARD, "pararnn-torch", 8),
    Target(Case(32, 1024, 128), BOTH, "pararnn-torch", 8),
)
MEMORY_AT_MOST_MIB = 116
# T = 4097 costs as T = 4096: what two medians of the same thing may differ by.
ONE_MORE_SAMPLE_AT_MOST = 1.1


def verdicts(results: dict[str, Any]) -> Table:
    """Every target that the run measured, for the contestant `ours`."""
    table = Table("Targets (ours, plain torch)", ["(B, T, d_h)", "what", "target", "measured", "reached"])
    medians = {Case(*entry["case"]): entry["median_ms"] for entry in results["cases"]}
    for target in TARGETS:
        times = medians.get(target.case, {}).get(target.what, {})
        if target.other in times:
            measured = times[target.other] / times["ours"]
            table.add(
                target.case, f"{target.what}, {target.other}", f">= {target.at_least:g}x", f"{measured:.2f}x", _said(measured >= target.at_least)
            )
    short, longer = medians.get(Case(8, 4096, 64)), medians.get(Case(8, 4097, 64))
    if short and longer:
        for what in (FORWARD, BOTH):
            measured = longer[what]["ours"] / short[what]["ours"]
            table.add(
                Case(8, 4097, 64),
                f"{what}, T = 4096",
                f"<= {ONE_MORE_SAMPLE_AT_MOST}x",
                f"{measured:.2f}x",
                _said(measured <= ONE_MORE_SAMPLE_AT_MOST),
            )
    memory = results["memory"]
    if Case(*memory["case"]) == Case(8, 4096, 64):
        found = max(memory["extra_peak"]["ours"].values())
        table.add(Case(8, 4096, 64), "extra peak memory", f"<= {MEMORY_AT_MOST_MIB} MiB", f"{found:.0f} MiB", _said(found <= MEMORY_AT_MOST_MIB))
    return table


def _said(reached: bool) -> str:
    return "yes" if reached else "NO"
