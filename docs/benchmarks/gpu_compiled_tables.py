"""Tables and the plot of `gpu_compiled.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import Table, ratio

# What is aimed at: times as fast as the peer, forward and forward+backward; its memory over ours; the solve at two shapes.
FORWARD_AT_LEAST, BOTH_AT_LEAST, MEMORY_AT_LEAST = 10, 15, 4
LIMIT_SHAPE, LIMIT_AT_LEAST_PERCENT = [32, 8192, 1024], 50
FEW_LANES_SHAPE, FEW_LANES_AT_MOST_US = [1, 131072, 64], 250
THIRD_PARTY_AT_LEAST = 0.5


def tables_of(results: dict[str, Any]) -> list[Table]:
    """A table of each part that was measured, and which aims were met."""
    makers = {"layers": layers, "solves": solves, "third party": third_party, "decode": decode, "plans": plans}
    return [make(results) for name, make in makers.items() if results.get(name)] + [aims(results)]


def layers(results: dict[str, Any]) -> Table:
    """Times of the whole layer, and how many times as long the peer takes."""
    times = ["looped", "graph", "peer / ours", "recorded", "peer / recorded"]
    heads = ["B, T, D", "forward, us", *times, "forward+backward, us", *times]
    table = Table("ParaCfC, whole layer, against pararnn-torch 0.17.4", [*heads, "peak, MiB", "peer / ours", "error, to the walk", "plan"])
    for row in rows_of(results, "layers"):
        peer = of_shape(results.get("peer", {}).get("layers", []), row["shape"])
        cells: list[str] = [named(row["shape"])]
        for what in ("forward", "both"):
            cells += [number(row.get(f"{what}{kind}_us")) for kind in ("", "_looped", "_graph")]
            cells.append(ratio(peer.get(f"{what}_us"), row.get(f"{what}_us")))
            recorded = row.get(f"{what}_recorded_us")
            cells += [number(recorded), ratio(peer.get(f"{what}_us"), recorded)]
        cells += [number(row["peak_mib"]), ratio(peer.get("peak_mib"), row["peak_mib"]), errors(row), f"{row['backend']}: {row['plan']}"]
        table.add(*cells)
    return table


def solves(results: dict[str, Any]) -> Table:
    """Shares of the memory limit."""
    heads = ["B, T, D", "forward, us", "limit", "share", "forward+backward, us", "limit", "share"]
    table = Table(f"The solve alone, CUDA graph; a copy reaches {results['copy_tb_per_s']:.2f} TB/s", heads)
    for row in rows_of(results, "solves"):
        cells = [named(row["shape"])]
        for what in ("forward", "both"):
            cells += [number(row.get(f"{what}_graph_us")), number(row[f"{what}_limit_us"]), f"{row.get(f'{what}_percent', float('nan')):.0f}%"]
        table.add(*cells)
    return table


def third_party(results: dict[str, Any]) -> Table:
    """A cell that nothing knows, and its rate over that of ParaCfC."""
    heads = ["B, T, D", "forward, us", "looped", "graph", "rate / ParaCfC's", "forward+backward, us", "looped", "graph", "rate / ParaCfC's"]
    table = Table("A third party's minGRU of 15 lines, whole layer", [*heads, "peak, MiB", "error, to the walk", "plan"])
    for row in rows_of(results, "third party"):
        cfc = of_shape(results.get("layers", []), row["shape"])
        cells = [named(row["shape"])]
        for what in ("forward", "both"):
            cells += [number(row.get(f"{what}{kind}_us")) for kind in ("", "_looped", "_graph")]
            cells.append(ratio(cfc.get(f"{what}_us"), row.get(f"{what}_us")))
        table.add(*cells, number(row["peak_mib"]), errors(row), f"{row['backend']}: {row['plan']}")
    return table


def decode(results: dict[str, Any]) -> Table:
    """Steps by batch."""
    heads = ["batch", "cell", "decoder, us", "replay alone", "decoder, no graph", "ParaRNN.step", "peer's cell.step", "the same, graph"]
    table = Table("One step of one layer of 256 channels", heads)
    peers = {row["batch"]: row for row in results.get("peer", {}).get("decode", [])}
    for row in rows_of(results, "decode"):
        peer = peers.get(row["batch"], {}) if row["cell"] == "ParaCfC" else {}
        mine = [number(row[key]) for key in ("graph_us", "replay_us", "launched_us", "step_us")]
        table.add(row["batch"], row["cell"], *mine, number(peer.get("step_us")), number(peer.get("graph_us")))
    return table


def plans(results: dict[str, Any]) -> Table:
    """Fixed intervals against the planner."""
    labels = list(dict.fromkeys(label for row in rows_of(results, "plans") for label in row["us"]))
    table = Table("The solve with fixed intervals, us, CUDA graph", ["B, T, D", *labels, "planned / best", "planned"])
    for row in rows_of(results, "plans"):
        fixed = [value for label, value in row["us"].items() if label != "auto"]
        best = min(fixed, default=None)
        cells = [number(row["us"].get(label)) for label in labels]
        table.add(named(row["shape"]), *cells, ratio(row["us"].get("auto"), best), row["planned"])
    return table


def aims(results: dict[str, Any]) -> Table:
    """Each aim that this run can speak of."""
    table = Table("Aims", ["what", "B, T, D", "aim", "measured", "reached"])
    for row in rows_of(results, "layers"):
        peer = of_shape(results.get("peer", {}).get("layers", []), row["shape"])
        for what, key, least in (
            ("forward, peer / ours", "forward_us", FORWARD_AT_LEAST),
            ("forward+backward, peer / ours", "both_us", BOTH_AT_LEAST),
            ("forward+backward, peer / ours recorded", "both_recorded_us", BOTH_AT_LEAST),
            ("peak memory, peer / ours", "peak_mib", MEMORY_AT_LEAST),
        ):
            # The peer cannot be recorded.
            theirs = peer.get(key.replace("_recorded", ""))
            if theirs is not None and key in row:
                found = theirs / row[key]
                table.add(what, named(row["shape"]), f">= {least}x", f"{found:.1f}x", said(found >= least))
    for row in rows_of(results, "solves"):
        if list(row["shape"]) == LIMIT_SHAPE and "forward_percent" in row:
            found = row["forward_percent"]
            table.add("solve, share of the limit", named(row["shape"]), ">= 50%", f"{found:.0f}%", said(found >= LIMIT_AT_LEAST_PERCENT))
        if list(row["shape"]) == FEW_LANES_SHAPE and "forward_graph_us" in row:
            found = row["forward_graph_us"]
            table.add("solve", named(row["shape"]), f"< {FEW_LANES_AT_MOST_US} us", f"{found:.0f} us", said(found < FEW_LANES_AT_MOST_US))
    for row in rows_of(results, "third party"):
        cfc = of_shape(results.get("layers", []), row["shape"])
        for what in ("forward_us", "both_us", "forward_graph_us", "both_graph_us"):
            if what in cfc and what in row:
                label, found = what[:-3].replace("_", ", "), cfc[what] / row[what]
                table.add(f"minGRU, rate / ParaCfC's, {label}", named(row["shape"]), ">= 0.5", f"{found:.2f}", said(found >= THIRD_PARTY_AT_LEAST))
    return table


def draw(results: dict[str, Any], target: Path) -> None:
    """Times of the layer beside the peer's, and of decoding; nothing where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(11, 7), layout="constrained")
    forward, both, memory, steps = figure.subplots(2, 2).flatten()
    for axes, key, title in ((forward, "forward_us", "forward, us"), (both, "both_us", "forward + backward, us"), (memory, "peak_mib", "peak, MiB")):
        sides = {"ParaCfC": rows_of(results, "layers"), "minGRU (third party)": rows_of(results, "third party")}
        sides["pararnn-torch's ParaCfC"] = results.get("peer", {}).get("layers", [])
        names = [named(row["shape"]) for row in sides["ParaCfC"]]
        for index, (label, rows) in enumerate(sides.items()):
            found = {named(row["shape"]): row[key] for row in rows if key in row}
            places = [place for place, name in enumerate(names) if name in found]
            axes.bar([place + 0.27 * (index - 1) for place in places], [found[names[place]] for place in places], 0.25, label=label)
        axes.set(yscale="log", title=title)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    forward.legend(fontsize=8)
    mine = [row for row in rows_of(results, "decode") if row["cell"] == "ParaCfC"]
    for key, label in (("graph_us", "decoder"), ("launched_us", "decoder, no graph"), ("step_us", "ParaRNN.step")):
        steps.plot([row["batch"] for row in mine], [row[key] for row in mine], "o-", label=label)
    peers = results.get("peer", {}).get("decode", [])
    steps.plot([row["batch"] for row in peers], [row["step_us"] for row in peers], "s--", label="pararnn-torch, cell.step")
    steps.set(xscale="log", yscale="log", title="one decoding step, us", xlabel="batch")
    steps.legend(fontsize=8)
    figure.savefig(target, dpi=130)


def rows_of(results: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """The rows of a part that did not fail."""
    return [row for row in results.get(part, []) if "failed" not in row]


def of_shape(rows: list[dict[str, Any]], shape: Any) -> dict[str, Any]:
    """The row of a shape, empty where there is none."""
    return next((row for row in rows if list(row.get("shape", ())) == list(shape)), {})


def named(shape: Any) -> str:
    """`8, 512, 64`."""
    return ", ".join(map(str, shape))


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def errors(row: dict[str, Any]) -> str:
    """The largest difference to double precision at the beginning, and to the engine's own walk over the whole."""
    return f"{row['error']:.1e}" + (f", {row['walk_difference']:.1e}" if "walk_difference" in row else "")


def said(reached: bool) -> str:
    return "yes" if reached else "NO"
