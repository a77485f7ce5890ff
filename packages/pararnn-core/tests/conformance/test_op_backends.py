"""Backends of an operation of one plugin, offered by another: no line of the core knows either."""

import pytest
import torch

from pararnn.conformance import backend_checks, verify_backend
from pararnn.conformance.report import Verdict
from pararnn.distributions import discover
from pararnn.registry import Registry, using
from pararnn.selection import Request
from pararnn.specs import OpSpec

OP = "toy/mix"
NEW = ["op_values", "op_of_any_strides", "op_is_repeatable", "op_gradients"]


def mix(values, weights, *, twice):
    """The definition: a product with a nonlinear derivative by each factor, and the sum of one of them."""
    product = weights * torch.exp(values)
    return (2 * product if twice else product), values.sum(-1)


def mix_example(seed, *, device, dtype):
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for rows, size, twice in ((3, 5, True), (1, 1, False)):
        values, weights = (0.5 * torch.randn(rows, size, generator=generator, dtype=torch.complex128) for _ in range(2))
        kind = torch.clone if dtype.is_complex else lambda tensor: tensor.real.contiguous()
        request = Request.of(OP, device=device, dtype=dtype, rows=rows, size=size, options={"twice": twice})
        calls.append((request, tuple(kind(tensor).to(device, dtype) for tensor in (values, weights)), {"twice": twice}))
    return calls


class Mix(torch.autograd.Function):
    """A backend with derivatives of its own, right ones."""

    @staticmethod
    def forward(ctx, values, weights, twice):
        ctx.save_for_backward(values, weights)
        ctx.factor = 2 if twice else 1
        return ctx.factor * weights * torch.exp(values), values.sum(-1)

    @staticmethod
    def backward(ctx, grad, grad_of_sum):
        values, weights = ctx.saved_tensors
        by_weights = grad * (ctx.factor * torch.exp(values)).conj()
        return by_weights * weights.conj() + grad_of_sum.unsqueeze(-1), by_weights, None


def own_mix(values, weights, *, twice):
    return Mix.apply(values, weights, twice)


def broken(backward):
    """A backend like `own_mix` whose derivatives come from `backward`."""
    function = type("Broken", (Mix,), {"backward": staticmethod(backward)})
    return lambda values, weights, *, twice: function.apply(values, weights, twice)


@pytest.fixture
def verify(candidate, backend, objects):
    """The report of a backend `trial` of the operation."""

    def run(implementation=own_mix, *, dtype="float32", example=mix_example, reasons=lambda request: (), probe=lambda: None, definition=mix):
        objects.definition, objects.implementation, objects.no_reasons, objects.probe = definition, implementation, reasons, probe
        if example is not None:
            objects.example = example
        named = "" if example is None else "fake_objects:example"
        op = OpSpec(name=OP, target="fake_objects:definition", summary="a toy", dtype=dtype, example=named)
        theirs = candidate("toy_ops", distribution="toy-ops", pararnn_register_ops=[op])
        ours = candidate("toy_kernels", distribution="toy-kernels", pararnn_register_backends=[backend("trial", op=OP)])
        core = [one for one in discover() if one.distribution == "pararnn-core"]
        with using(Registry.of([*core, theirs, ours], environ={})):
            return verify_backend(OP, "trial")

    return run


@pytest.mark.parametrize("implementation", [mix, own_mix])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_backend_without_a_fault_passes_every_check(verify, implementation, dtype):
    report = verify(implementation, dtype=dtype).raise_for_failures()
    assert [result.check for result in report.results] == ["reasons", "probe", *NEW]
    assert {result.verdict for result in report.results} == {Verdict.PASSED}


@pytest.mark.parametrize(("dtype", "precisions"), [("float64", 4), ("complex64", 2)])
def test_every_precision_of_the_kind_is_compared(verify, dtype, precisions):
    seen = set()

    def watched(values, weights, *, twice):
        seen.add(values.dtype)
        return mix(values, weights, twice=twice)

    assert verify(watched, dtype=dtype).ok
    # The definition itself is computed in double precision elsewhere; this is the backend.
    assert len(seen) == precisions
    assert {one.is_complex for one in seen} == {dtype.startswith("complex")}


def test_without_an_example_the_checks_are_what_they_were(verify):
    report = verify(lambda: 1 / 0, example=None).raise_for_failures()
    assert [result.check for result in report.results] == ["reasons", "probe", "solve_states", "solve_gradients"]


def test_the_checks_of_all_operations_are_listed_together():
    assert set(NEW) < set(backend_checks())


def test_wrong_numbers_in_one_precision_are_named_with_it(verify):
    def wrong(values, weights, *, twice):
        product, total = mix(values, weights, twice=twice)
        return product * (1 + 1e-3 * (values.dtype == torch.float32)), total

    found = verify(wrong).failures["op_values"]
    assert "float32" in found
    assert "that of the definition differ by" in found


def test_a_keyword_that_is_ignored_is_named(verify):
    assert "twice=True" in verify(lambda values, weights, *, twice: mix(values, weights, twice=False)).failures["op_values"]


def test_a_result_of_another_dtype_is_named(verify):
    def wide(values, weights, *, twice):
        return tuple(result.double() for result in mix(values, weights, twice=twice))

    assert "in dtype, torch.float64 and torch.float32" in verify(wide).failures["op_values"]


def test_a_result_that_is_left_out_is_named(verify):
    assert "1 results and the definition 2" in verify(lambda values, weights, *, twice: mix(values, weights, twice=twice)[0]).failures["op_values"]


def test_a_backend_without_gradients_is_named(verify):
    def detached(values, weights, *, twice):
        return mix(values.detach(), weights.detach(), twice=twice)

    found = verify(detached).failures
    assert "the gradient by values is missing" in found["op_gradients"]
    assert "op_values" not in found


def test_a_gradient_that_is_none_for_one_tensor_is_named(verify):
    def backward(ctx, *grads):
        return Mix.backward(ctx, *grads)[0], None, None

    assert "the gradient by weights is missing" in verify(broken(backward)).failures["op_gradients"]


def test_a_gradient_that_forgets_a_result_is_named(verify):
    def backward(ctx, grad, grad_of_sum):
        return Mix.backward(ctx, grad, torch.zeros_like(grad_of_sum))

    found = verify(broken(backward)).failures
    assert "the gradient by values and that of the definition differ" in found["op_gradients"]
    assert "op_values" not in found


def test_a_gradient_without_its_conjugation_is_named(verify):
    def backward(ctx, *grads):
        by_values, by_weights, _ = Mix.backward(ctx, *(grad.conj() for grad in grads))
        return by_values.conj(), by_weights.conj(), None

    assert verify(broken(backward), dtype="float32").ok
    assert "gradient by values" in verify(broken(backward), dtype="complex64").failures["op_gradients"]


def test_a_gradient_that_is_wrong_only_where_no_other_is_wanted_is_named(verify):
    def backward(ctx, *grads):
        by_values, by_weights, _ = Mix.backward(ctx, *grads)
        return by_values, (by_weights if ctx.needs_input_grad[0] else 0 * by_weights), None

    assert "the gradient by weights where no other is wanted" in verify(broken(backward)).failures["op_gradients"]


def test_a_backend_that_reads_memory_as_if_it_were_contiguous_is_named(verify):
    def raw(values, weights, *, twice):
        return mix(torch.as_strided(values, values.shape, (values.shape[1], 1)), weights, twice=twice)

    found = verify(raw).failures
    assert "not contiguous" in found["op_of_any_strides"]
    assert "op_values" not in found


def test_a_backward_that_reads_its_gradient_as_if_it_were_contiguous_is_named(verify):
    def backward(ctx, grad, grad_of_sum):
        # What follows the one number in memory is whatever a kernel finds there.
        found = grad if grad.is_contiguous() else torch.cat((grad.flatten()[:1], 0 * grad.flatten()[1:])).reshape(grad.shape)
        return Mix.backward(ctx, found, grad_of_sum)

    found = verify(broken(backward)).failures
    assert "not contiguous" in found["op_of_any_strides"]
    assert "op_gradients" not in found


def test_a_backend_that_writes_into_its_arguments_is_named(verify):
    def writing(values, weights, *, twice):
        result = mix(values, weights, twice=twice)
        weights.data.zero_()
        return result

    assert "writes into weights" in verify(writing).failures["op_is_repeatable"]


def test_a_backward_that_writes_into_what_was_saved_is_named(verify):
    def backward(ctx, *grads):
        found = Mix.backward(ctx, *grads)
        ctx.saved_tensors[0].data.zero_()
        return found

    assert "writes into values" in verify(broken(backward)).failures["op_is_repeatable"]


def test_a_backend_that_differs_from_call_to_call_is_named(verify):
    def shaky(values, weights, *, twice):
        product, total = mix(values, weights, twice=twice)
        return product * (1 + 1e-14 * torch.rand((), dtype=torch.float64)), total

    found = verify(shaky).failures
    assert "two calls with equal inputs give results of other bits" in found["op_is_repeatable"]
    assert "op_values" not in found


def test_gradients_that_differ_from_call_to_call_are_named(verify):
    def backward(ctx, *grads):
        return (*(gradient * (1 + 1e-14 * torch.rand((), dtype=torch.float64)) for gradient in Mix.backward(ctx, *grads)[:2]), None)

    found = verify(broken(backward)).failures
    assert "give gradients of other bits" in found["op_is_repeatable"]
    assert "op_gradients" not in found


def test_a_backend_that_raises_where_it_named_no_obstacle_is_named(verify):
    def single(values, weights, *, twice):
        if values.dtype != torch.float32:
            raise RuntimeError("no kernel for this dtype")
        return mix(values, weights, twice=twice)

    assert "no kernel for this dtype) although its reasons name no obstacle" in verify(single).failures["op_values"]
    honest = verify(single, reasons=lambda request: () if request.dtype == "float32" else ("it works in float32",))
    assert honest.raise_for_failures().results[2].verdict is Verdict.PASSED


def test_a_backend_is_called_only_with_forms_that_it_serves_and_asked_as_if_it_were_named(verify):
    def reasons(request):
        if not request.option("named"):
            return ("it serves whoever names it",)
        return () if request.option("twice") and request.size("size") > 1 else ("only twice, and more than one number",)

    def particular(values, weights, *, twice):
        assert twice
        assert values.shape[1] > 1
        return mix(values, weights, twice=twice)

    report = verify(particular, reasons=reasons).raise_for_failures()
    assert {result.verdict for result in report.results} == {Verdict.PASSED}


def test_a_backend_for_inference_is_held_to_values_only(verify):
    def detached(values, weights, *, twice):
        return mix(values.detach(), weights.detach(), twice=twice)

    report = verify(detached, reasons=lambda request: ("it has no derivatives",) if request.needs_grad else ()).raise_for_failures()
    verdicts = {result.check: result.verdict for result in report.results}
    assert verdicts["op_values"] is Verdict.PASSED
    assert verdicts["op_gradients"] is Verdict.NOT_APPLICABLE


def test_a_backend_that_cannot_serve_here_says_why(verify):
    report = verify(reasons=lambda request: ("it needs an abacus",), probe=lambda: ("no abacus",)).raise_for_failures()
    assert {result.verdict for result in report.results} == {Verdict.NOT_APPLICABLE}
    assert "it needs an abacus" in report.results[2].detail


def test_a_precision_that_the_example_leaves_out_is_not_compared(verify):
    def single(seed, *, device, dtype):
        return mix_example(seed, device=device, dtype=dtype) if dtype == torch.float32 else []

    def wrong_elsewhere(values, weights, *, twice):
        return mix(values * (values.dtype == torch.float32), weights, twice=twice)

    assert verify(wrong_elsewhere, example=single).ok


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (lambda seed, *, device, dtype: [torch.ones(3)], "gives Tensor; it takes (seed, *, device, dtype) and gives a list of"),
        (lambda seed, *, device, dtype: [(torch.ones(3), {})], "gives (Tensor, dict)"),
        (lambda seed, *, device, dtype: [(Request.of("toy/other"), (), {})], "gives the request [toy/other on cpu"),
        (lambda seed: [], "fails (TypeError"),
    ],
    ids=["tensor", "no request", "another operation", "signature"],
)
def test_an_example_of_another_form_is_named(verify, example, says):
    found = verify(example=example).failures["op_values"]
    assert "the example fake_objects:example of toy/mix for float64 on cpu" in found
    assert says in found


def test_a_dtype_that_no_example_can_be_made_in_is_named(verify):
    assert "has dtype='complex65'" in verify(dtype="complex65").failures["op_values"]
