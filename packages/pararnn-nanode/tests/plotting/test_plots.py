"""What is drawn: the numbers of the lines, not the look of them."""

import sys

import pytest
import torch

from pararnn.errors import BackendError, ConfigError, InputError
from pararnn_nanode import NANODE, BucketPath, CallableField, ConstantPath, DenseField, PolyPath, TrigPath, plot_path, plot_weights


@pytest.fixture(autouse=True)
def pyplot():
    """matplotlib without a screen."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def test_every_entry_of_a_small_weight_is_a_line_with_its_values():
    path = TrigPath((2, 3), 1)
    (axes,) = plot_weights(path, times=5)
    assert [line.get_label() for line in axes.lines] == [f"W[{i}, {j}]" for i in range(2) for j in range(3)]
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert axes.lines[4].get_xdata() == pytest.approx(times.tolist())
    assert axes.lines[4].get_ydata() == pytest.approx(path.grid(times)[:, 1, 1].tolist())


def test_of_a_large_weight_evenly_spread_entries_are_drawn():
    (axes,) = plot_weights(PolyPath((8, 8), 2), entries=3)
    assert [line.get_label() for line in axes.lines] == ["W[0, 0]", "W[4, 0]", "W[7, 7]"]
    assert axes.get_ylabel() == "W, 3 of 64 entries"


def test_a_jump_is_drawn_upright_with_a_mark():
    path = BucketPath((1, 1), 2)
    (axes,) = plot_weights(path, times=3)
    first, second = path.coefficients.flatten().tolist()
    assert axes.lines[0].get_ydata() == pytest.approx([first, first, second, second, second])
    assert axes.lines[-1].get_xdata() == pytest.approx([0.5, 0.5])


def test_every_path_of_a_field_or_block_has_axes_of_its_own():
    field = DenseField(2, TrigPath((2, 2), 1), bias=ConstantPath(2))
    assert [axes.get_ylabel() for axes in plot_weights(field)] == ["W", "b"]
    assert [axes.get_ylabel() for axes in plot_weights(NANODE(field))] == ["W", "b"]
    assert [axes.get_ylabel() for axes in plot_weights(torch.nn.Sequential(NANODE(field)))] == ["0.W", "0.b"]


def test_weights_of_a_field_of_ones_own_keep_their_names():
    class TwoLayers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.path, self.outer = TrigPath((2, 2), 1), TrigPath((2, 2), 1)

    assert [axes.get_ylabel() for axes in plot_weights(TwoLayers())] == ["path", "outer"]


def test_a_legend_can_be_left_out():
    path = TrigPath((2, 2), 1)
    assert plot_weights(path)[0].get_legend() is not None
    assert plot_weights(path, legend=False)[0].get_legend() is None
    assert plot_path(NANODE(lambda t, x: -x, output="path").solve(torch.ones(3)), legend=False).get_legend() is None


def test_a_sample_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="has 3 samples, numbered from 0; there is no sample 9"):
        plot_path(NANODE(lambda t, x: -x, output="path").solve(torch.ones(3, 2)), sample=9)


def test_weights_are_drawn_into_given_axes(pyplot):
    _, axes = pyplot.subplots()
    assert plot_weights(ConstantPath((2, 2)), axes=axes) == [axes]


def test_other_numbers_of_axes_are_refused(pyplot):
    _, axes = pyplot.subplots()
    with pytest.raises(ConfigError, match=r"holds 2 paths \(W, b\), but 1 axes"):
        plot_weights(DenseField(2, ConstantPath((2, 2)), bias=ConstantPath(2)), axes=axes)


def test_a_module_without_paths_is_refused():
    with pytest.raises(ConfigError, match="CallableField holds no weight path"):
        plot_weights(CallableField(torch.sin))


@pytest.mark.parametrize(("shape", "sample"), [((2,), 0), ((3, 2), 1), ((3, 2, 2), 2)], ids=str)
def test_the_path_of_a_sample_is_drawn(shape, sample):
    solution = NANODE(lambda t, x: -x, 4, output="path").solve(torch.randn(shape))
    axes = plot_path(solution, sample=sample)
    states = (solution.x[:, sample] if len(shape) > 1 else solution.x).flatten(1)
    assert len(axes.lines) == states.shape[1]
    assert axes.lines[-1].get_xdata() == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert axes.lines[-1].get_ydata() == pytest.approx(states[:, -1].tolist())


def test_a_sample_is_drawn_over_its_own_times():
    solution = NANODE(lambda t, x: -x, 4).solve(torch.ones(2, 1), torch.tensor([[0.5, 1.0], [0.25, 0.5]]))
    assert plot_path(solution, sample=1).lines[0].get_xdata() == pytest.approx([0.25, 0.5])


def test_states_with_gradients_are_drawn():
    plot_path(NANODE(DenseField(2, ConstantPath((2, 2))), output="path").solve(torch.ones(2)))


def test_one_time_is_no_path():
    with pytest.raises(InputError, match="output='path'"):
        plot_path(NANODE(lambda t, x: -x).solve(torch.ones(2)))


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendError, match=r"matplotlib cannot be imported .*; pip install 'pararnn-nanode\[plot\]'"):
        plot_weights(ConstantPath((2, 2)))
