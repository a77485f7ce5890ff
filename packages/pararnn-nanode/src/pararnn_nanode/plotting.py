"""Pictures of weights over time and of states over time, with matplotlib (`pip install 'pararnn-nanode[plot]'`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pararnn.errors import BackendError, ConfigError, InputError
from pararnn_nanode.fields.base import paths_of
from pararnn_nanode.fields.layer import LayerField
from pararnn_nanode.paths.base import WeightPath
from pararnn_nanode.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BESIDE_AN_EDGE = 1e-6
"""How far before an edge, in spans, the last weight before it is read, so that a jump is drawn upright."""


SYMBOLS = {"path": "W", "bias": "b", "input": "U"}
"""What formulas call the paths of a field."""


def plot_weights(source: nn.Module, *, times: int = 200, entries: int = 10, axes: Axes | list[Axes] | None = None, legend: bool = True) -> list[Axes]:
    """Axes with the weights of `source` over its span, one for each path in it; a dotted line where weights jump.

    Args:
        source: a path, or anything that holds paths: a field, whose paths are called W, b and U, a block, a model.
        times: how many times to read the weights at.
        entries: how many entries of each weight to draw, evenly spread over all of them.
        axes: where to draw; new axes, one above the other, where left out.
        legend: whether the lines are named, beside the axes.

    Raises:
        ConfigError: `source` holds no path, or as many axes as paths were not given.
        BackendError: matplotlib is not installed, and no axes were given.
    """
    paths = [(_symbol(source, name), path) for name, path in paths_of(source)]
    if not paths:
        raise ConfigError(f"{type(source).__name__} holds no weight path, so that there are no weights over time to plot")
    if axes is None:
        drawn = _new_axes(len(paths))
    else:
        drawn = list(axes) if isinstance(axes, list | tuple) else [axes]
    if len(drawn) != len(paths):
        raise ConfigError(
            f"{type(source).__name__} holds {len(paths)} paths ({', '.join(name for name, _ in paths)}), but {len(drawn)} axes were given"
        )
    for (name, path), on in zip(paths, drawn, strict=True):
        _draw_path(path, name, on, times=times, entries=entries, legend=legend)
    drawn[-1].set_xlabel("t")
    return drawn


def plot_path(solution: Solution, *, sample: int = 0, entries: int = 10, axes: Axes | None = None, legend: bool = True) -> Axes:
    """Axes with the state of one sample over the times of `solution`; a dotted line where an event ended it.

    Args:
        sample: which sample of the first batch dimension; states without a batch have none.
        entries: how many entries of the state to draw, evenly spread over all of them.
        axes: where to draw; new axes where left out.
        legend: whether the lines are named, beside the axes.

    Raises:
        InputError: `solution` holds one time only, or no such sample.
        BackendError: matplotlib is not installed, and no axes were given.
    """
    states, t = solution.x.detach(), solution.t.detach()
    if len(states) < 2:
        raise InputError("the solution holds one time, which is no path; solve with several times or with output='path'")
    if states.ndim > 2:
        if not -states.shape[1] <= sample < states.shape[1]:
            raise InputError(f"the solution has {states.shape[1]} samples, numbered from 0; there is no sample {sample}")
        states = states[:, sample]
    on = _new_axes(1)[0] if axes is None else axes
    _draw(on, t[sample] if t.ndim == 2 else t, states, "x", entries=entries, legend=legend, marker="." if len(states) <= 50 else "")
    if solution.event is not None and solution.event.numel() == 1:
        on.axvline(float(solution.event), color="grey", linestyle=":")
    on.set_xlabel("t")
    return on


def _symbol(source: nn.Module, name: str) -> str:
    """What the path called `name` in `source` is called in a picture: `W`, `b` and `U` in a field, with the place of the field where it has one."""
    place, _, own = name.rpartition(".")
    if not own or isinstance(source.get_submodule(place), LayerField):
        own = SYMBOLS.get(own or "path", own)
    outer = place.removesuffix("field").rstrip(".")
    return f"{outer}.{own}" if outer else own


def _draw_path(path: WeightPath, name: str, on: Axes, *, times: int, entries: int, legend: bool) -> None:
    start, end = path.span
    # Weights of a piece go on until the edge: read both sides of it.
    edges = [t for edge in path.edges() for t in (edge - BESIDE_AN_EDGE * abs(end - start), edge)]
    grid = torch.cat([torch.linspace(start, end, times, dtype=torch.float64), torch.tensor(edges, dtype=torch.float64)]).sort().values
    with torch.no_grad():
        device = next((parameter.device for parameter in path.parameters()), None)
        weights = path.grid(grid.to(device))
    _draw(on, grid, weights, name, entries=entries, legend=legend)
    for edge in path.edges():
        on.axvline(edge, color="grey", linestyle=":", linewidth=0.5)


def _draw(on: Axes, t: Tensor, values: Tensor, name: str, *, entries: int, legend: bool, **style: Any) -> None:
    """One line for each of `entries` entries of `values` `(times, ...)`, labelled by its indices."""
    shape, flat = values.shape[1:], values.flatten(1) if values.ndim > 1 else values[:, None]
    count = flat.shape[1]
    chosen = sorted({round(k * (count - 1) / max(1, entries - 1)) for k in range(entries)}) if count > entries else range(count)
    for index in chosen:
        place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(index), shape)) if shape else ""
        label = f"{name}[{place}]" if place else name
        on.plot(t.cpu().tolist(), flat[:, index].double().cpu().tolist(), label=label, linewidth=1, **style)
    on.set_ylabel(name if count <= entries else f"{name}, {len(chosen)} of {count} entries")
    if legend and len(chosen) > 1:
        on.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))


def _new_axes(count: int) -> list[Axes]:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise BackendError(f"matplotlib cannot be imported ({error}); pip install 'pararnn-nanode[plot]'") from error
    _, axes = pyplot.subplots(count, 1, sharex=True, squeeze=False, figsize=(7, 2.5 * count), layout="constrained")
    return [row[0] for row in axes]
