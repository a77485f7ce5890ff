"""Where ncps 1.0.1 fails or answers wrongly, and what `CfC` does instead; each test shows the fault in ncps first."""

from __future__ import annotations

import pytest
import torch

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_cfc.cfc import CfC

# The oracle is an extra of its own; without it the matrix sessions still run these tests.
ncps_torch = pytest.importorskip("ncps.torch")
ncps_wirings = pytest.importorskip("ncps.wirings")
NcpsCfC = ncps_torch.CfC
AutoNCP = ncps_wirings.AutoNCP
FullyConnected = ncps_wirings.FullyConnected

SAME = {"rtol": 0, "atol": 1e-6}


def pair(*positional, **keywords):
    reference = NcpsCfC(*positional, **keywords)
    ours = CfC(*positional, **keywords)
    ours.load_state_dict(reference.state_dict())
    return reference, ours


def one_at_a_time(model, x, gaps):
    return torch.cat([model(x[index : index + 1], timespans=gaps[index : index + 1])[0] for index in range(x.shape[0])])


@pytest.mark.parametrize("width", [(), (1,)], ids=["batch-time", "batch-time-1"])
def test_gaps_of_a_batch_as_large_as_the_state_go_to_the_sequence_and_not_to_the_unit(width):
    reference, ours = pair(3, 4)
    x, gaps = torch.randn(4, 6, 3), 3 * torch.rand(4, 6)
    expected = one_at_a_time(reference, x, gaps)
    wrong, _ = reference(x, timespans=gaps.reshape(4, 6, *width))
    assert (wrong - expected).abs().max() > 1e-2
    torch.testing.assert_close(ours(x, timespans=gaps.reshape(4, 6, *width))[0], expected, **SAME)


@pytest.mark.parametrize("wired", [False, True], ids=["plain", "wired"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
def test_gaps_of_any_other_batch_work(batch_first, wired):
    reference = NcpsCfC(3, AutoNCP(8, 2) if wired else 4, batch_first=batch_first)
    ours = CfC(3, AutoNCP(8, 2) if wired else 4, batch_first=batch_first)
    ours.load_state_dict(reference.state_dict())
    x, gaps = torch.randn(5, 6, 3), 3 * torch.rand(5, 6)
    ordered = (x, gaps) if batch_first else (x.transpose(0, 1), gaps.transpose(0, 1))
    with pytest.raises(RuntimeError, match="must match the size"):
        reference(ordered[0], timespans=ordered[1])
    reference.batch_first = True
    expected = one_at_a_time(reference, x, gaps)
    output, _ = ours(ordered[0], timespans=ordered[1])
    torch.testing.assert_close(output if batch_first else output.transpose(0, 1), expected, **SAME)


@pytest.mark.parametrize("gap", [0.5, 2, torch.tensor(0.5)], ids=["float", "int", "scalar-tensor"])
def test_a_number_holds_for_every_gap(gap):
    reference, ours = pair(3, 4)
    x = torch.randn(5, 6, 3)
    with pytest.raises((TypeError, IndexError)):
        reference(x, timespans=gap)
    torch.testing.assert_close(ours(x, timespans=gap)[0], reference(x, timespans=torch.full((1, 6), float(gap)))[0], **SAME)


def test_gaps_of_the_time_axis_alone_work_with_the_batch_first():
    reference, ours = pair(3, 4)
    x, gaps = torch.randn(5, 6, 3), torch.rand(6)
    with pytest.raises(IndexError):
        reference(x, timespans=gaps)
    torch.testing.assert_close(ours(x, timespans=gaps)[0], reference(x, timespans=gaps[None])[0], **SAME)


def test_gaps_in_double_precision_are_converted():
    reference, ours = pair(3, 4)
    x, gaps = torch.randn(2, 6, 3), torch.rand(2, 6, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="dtype"):
        reference(x, timespans=gaps)
    torch.testing.assert_close(ours(x, timespans=gaps)[0], reference(x, timespans=gaps.float())[0], **SAME)


def test_an_unbatched_last_output_loses_the_batch_dimension_with_time_first():
    reference, ours = pair(3, 4, batch_first=False, return_sequences=False)
    x = torch.randn(6, 3)
    assert reference(x)[0].shape == (1, 4)
    torch.testing.assert_close(ours(x)[0], reference(x)[0][0], **SAME)


@pytest.mark.parametrize(("mixed_memory", "dtype"), [(True, torch.float64), (False, torch.bfloat16)], ids=["mixed-float64", "bfloat16"])
def test_no_state_given_starts_at_zero_in_the_dtype_of_the_weights(mixed_memory, dtype):
    reference, ours = pair(3, 4, mixed_memory=mixed_memory)
    reference, ours = reference.to(dtype), ours.to(dtype)
    x, zero = torch.randn(2, 6, 3, dtype=dtype), torch.zeros(2, 4, dtype=dtype)
    with pytest.raises(RuntimeError, match="dtype"):
        reference(x)
    expected, _ = reference(x, (zero, zero) if mixed_memory else zero)
    torch.testing.assert_close(ours(x)[0], expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 0.03)


@pytest.mark.parametrize("return_sequences", [True, False])
def test_no_samples_are_refused(return_sequences):
    reference, ours = pair(3, 4, return_sequences=return_sequences)
    with pytest.raises((RuntimeError, UnboundLocalError)):
        reference(torch.zeros(2, 0, 3))
    with pytest.raises(ShapeError, match="at least one sample"):
        ours(torch.zeros(2, 0, 3))


def test_a_missing_feature_is_not_made_up_for_by_a_wider_state():
    reference, ours = pair(3, 4)
    assert reference(torch.randn(5, 1, 2), torch.zeros(5, 5))[0].shape == (5, 1, 4)
    with pytest.raises(ShapeError, match="takes inputs of shape"):
        ours(torch.randn(5, 1, 2), torch.zeros(5, 5))


def test_more_gaps_than_samples_are_refused():
    reference, ours = pair(3, 4)
    assert reference(torch.randn(1, 6, 3), timespans=torch.rand(1, 9))[0].shape == (1, 6, 4)
    with pytest.raises(ShapeError, match=r"shape \(1, 9\) do not fit 1 sequence\(s\) of 6 samples"):
        ours(torch.randn(1, 6, 3), timespans=torch.rand(1, 9))


def test_negative_gaps_are_refused():
    reference, ours = pair(3, 4, mode="pure")
    x, gaps = torch.randn(1, 50, 3), -100 * torch.rand(1, 50)
    assert not reference(x, timespans=gaps)[0].isfinite().all()
    with pytest.raises(InputError, match="50 of 50 values that are negative or not finite"):
        ours(x, timespans=gaps)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0], ids=str)
@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
@torch.no_grad()
def test_a_gap_that_is_no_length_of_time_is_found_in_a_graph_too_which_sees_no_values(mode, value):
    _, ours = pair(3, 4, mode=mode)
    graph, x, gaps = torch.compile(ours, backend="eager"), torch.randn(2, 6, 3), torch.rand(2, 6)
    torch.testing.assert_close(graph(x, timespans=gaps)[0], ours(x, timespans=gaps)[0])
    gaps[1, 4] = value
    with pytest.raises(InputError, match=r"drive.s elapsed is not \(first at batch 1, step 4"):
        graph(x, timespans=gaps)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0], ids=str)
def test_a_gap_that_is_no_length_of_time_is_refused_with_its_place(value):
    gaps = torch.rand(2, 6)
    gaps[1, 4] = value
    with pytest.raises(InputError, match=r"1 of 12 .* the first .* at index \(1, 4\)"):
        CfC(3, 4)(torch.randn(2, 6, 3), timespans=gaps)


@pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])
def test_gaps_of_zero_give_the_numbers_of_ncps(mode):
    reference, ours = pair(3, 4, mode=mode)
    x, gaps = torch.randn(1, 6, 3), torch.zeros(1, 6)
    torch.testing.assert_close(ours(x, timespans=gaps)[0], reference(x, timespans=gaps)[0], **SAME)


def test_a_projection_of_a_wiring_whose_outputs_are_not_a_layer_is_refused_when_built():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        NcpsCfC(3, FullyConnected(8, 3), proj_size=2)(torch.randn(5, 6, 3))
    with pytest.raises(ConfigError, match=r"output_dim \(3\) to be the size of its last layer \(8\)"):
        CfC(3, FullyConnected(8, 3), proj_size=2)


def test_the_output_size_of_a_wired_network_is_the_size_of_its_outputs():
    reference, ours = NcpsCfC(3, FullyConnected(8, 3)), CfC(3, FullyConnected(8, 3))
    x = torch.randn(5, 6, 3)
    assert reference.output_size == 3
    assert reference(x)[0].shape[-1] == 8
    assert ours.output_size == ours(x)[0].shape[-1] == 8


def test_a_second_network_of_a_wiring_has_the_synapses_of_the_first():
    def synapses(model):
        return sum(int(value.sum()) for name, value in model.state_dict().items() if name.endswith("sparsity_mask"))

    shared = AutoNCP(12, 3)
    first, second = NcpsCfC(5, shared), NcpsCfC(5, shared)
    assert synapses(second) > synapses(first)
    shared = AutoNCP(12, 3)
    assert synapses(CfC(5, shared)) == synapses(CfC(5, shared)) == synapses(first)


@pytest.mark.parametrize("mixed_memory", [False, True], ids=["plain", "mixed"])
def test_a_wiring_that_knows_its_features_needs_no_input_size(mixed_memory):
    wiring = FullyConnected(6)
    wiring.build(3)
    if mixed_memory:
        with pytest.raises(TypeError):
            NcpsCfC(None, wiring, mixed_memory=True)
    assert CfC(None, wiring, mixed_memory=mixed_memory)(torch.randn(5, 6, 3))[0].shape == (5, 6, 6)


def test_unfreezing_all_parameters_does_not_train_the_synapses():
    reference, ours = NcpsCfC(3, AutoNCP(12, 3)), CfC(3, AutoNCP(12, 3))
    for model in (reference, ours):
        model.requires_grad_(True)
    assert any(name.endswith("sparsity_mask") for name, _ in reference.named_parameters())
    assert not any(name.endswith("sparsity_mask") for name, _ in ours.named_parameters())


def test_replacing_a_layer_of_a_wired_network_takes_effect():
    reference, ours = NcpsCfC(3, FullyConnected(4)), CfC(3, FullyConnected(4))
    x = torch.randn(2, 5, 3)
    for model, counts in ((reference, False), (ours, True)):
        before = model(x)[0]
        model.rnn_cell.layer_0 = type(model.rnn_cell.layer_0)(3, 4, backbone_layers=0)
        assert (not torch.equal(model(x)[0], before)) is counts
