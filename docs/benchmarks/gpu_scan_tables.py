"""The tables of `gpu_scan.py`, and which aims were met."""

from __future__ import annotations

from typing import Any

from gpu_scan_contestants import BDT, BTD, OURS, PEERS
from report import Table

Row = dict[str, Any]
KINDS = ("forward", "both")
# Shares of the limit that are aimed at: forward, forward and backward.
SHARES: dict[tuple[int, int, int], tuple[int, int | None]] = {
    (8, 4096, 1536): (90, 85),
    (32, 8192, 1024): (90, 85),
    (1, 65536, 512): (80, None),
    (1, 131072, 64): (60, None),
    (8, 2048, 256): (60, None),
}


def tables_of(results: dict[str, Any]) -> list[Table]:
    """Times, blocks of 2 x 2, and aims: what is measured so far."""
    return [times(results), *([blocks(results)] if results["blocks"] else []), aims(results)]


def heading(results: dict[str, Any]) -> str:
    """Where it ran, how to read it, and who is missing."""
    facts = f"{results['device']}, torch {results['torch']}, Triton {results['triton']}; a copy moves {results['copy_tb_per_s']:.2f} TB/s."
    missing = [f"{name}: {reason}" for name, reason in results["missing"].items()]
    return "\n".join([facts, *(["", "Peers that are missing: " + "; ".join(missing) + "."] if missing else [])])


def times(results: dict[str, Any]) -> Table:
    title = "Diagonal scan: microseconds, and the share of what a copy of as many bytes takes; * is what `auto` launches"
    table = Table(title, ["shape (B, T, D)", "", "tensors", "forward", "", "forward+backward", "", "error, states and gradients"])
    for row in results["rows"]:
        name = row["name"] + ("*" if row.get("chosen") else "")
        errors = " and ".join(f"{row[key]:.0e}" for key in ("error", "gradient_error") if key in row)
        table.add(tuple(row["shape"]), name, tensors_of(row), *figures(row), errors or row.get("failed") or "-")
    return table


def tensors_of(row: Row) -> str:
    """In which layout: peers have one of their own."""
    if row["name"] in PEERS:
        return f"in its own layout, {BDT}" if row["layout"] == BDT else f"on {BTD}"
    return f"on {row['layout']}"


def blocks(results: dict[str, Any]) -> Table:
    table = Table("Blocks of 2 x 2", ["shape (B, T, D)", "forward", "", "forward+backward", ""])
    for row in results["blocks"]:
        table.add(tuple(row["shape"]), *figures(row))
    return table


def figures(row: Row) -> list[str]:
    return [f"{row[key]:.0f}{unit}" if key in row else "-" for kind in KINDS for key, unit in ((f"{kind}_us", ""), (f"{kind}_percent", "%"))]


def aims(results: dict[str, Any]) -> Table:
    """Shares of the limit, and how many times as fast as each peer ours is; `missed` where it falls short."""
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in results["rows"]))
    table = Table("Aims: forward, forward+backward", ["aim", *map(str, shapes)])
    found = aims_of(results["rows"])
    for aim in dict.fromkeys(entry["aim"] for entry in found):
        entries = {tuple(entry["shape"]): entry for entry in found if entry["aim"] == aim}
        table.add(aim, *(", ".join(filter(None, (verdict(entries.get(shape, {}), kind) for kind in KINDS))) or "-" for shape in shapes))
    return table


def aims_of(rows: list[Row]) -> list[Row]:
    """Every aim at every shape: what is reached forward and forward+backward, and what was to be."""
    found: list[Row] = []
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        of_shape = [row for row in rows if tuple(row["shape"]) == shape]
        ours = {BTD: next((row for row in of_shape if row.get("chosen")), {}), BDT: named(of_shape, OURS, BDT)}
        shares = [
            {"kind": kind, "reached": ours[BTD][f"{kind}_percent"], "at_least": share, "unit": "%"}
            for kind, share in zip(KINDS, SHARES.get(shape, (None, None)), strict=True)
            if share and f"{kind}_percent" in ours[BTD]
        ]
        found.append({"aim": f"share of the limit on {BTD}", "shape": shape, "of": shares})
        for layout, name in ((layout, name) for layout in (BTD, BDT) for name in PEERS):
            peer = named(of_shape, name, layout)
            keys = [(kind, f"{kind}_us") for kind in KINDS]
            ratios = [
                {"kind": kind, "reached": peer[key] / ours[layout][key], "at_least": 1, "unit": "x"}
                for kind, key in keys
                if key in peer and key in ours[layout]
            ]
            if any(row["name"] == name for row in rows):
                found.append({"aim": f"ahead of {name} {'on' if layout == BTD else 'in'} {layout}", "shape": shape, "of": ratios})
    return found


def verdict(entry: Row, kind: str) -> str:
    for figure in entry.get("of", []):
        if figure["kind"] == kind:
            number = f"{figure['reached']:.1f}%" if figure["unit"] == "%" else f"{figure['reached']:.2f}x"
            return number if figure["reached"] >= figure["at_least"] else f"**{number} missed**"
    return ""


def named(rows: list[Row], name: str, layout: str) -> Row:
    return next((row for row in rows if row["name"] == name and row["layout"] == layout), {})
