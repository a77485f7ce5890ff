"""The scan under torch's transforms: vmap, torch.func, forward mode, torch.compile, and the operator's own consistency."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import pararnn.scans
from pararnn.errors import DifferentiationError
from pararnn.scans.dispatch import structure_path
from pararnn.scans.op import scan_op

PACKED = [0, 0, 4, 9]
# Transforms see one operator, whatever serves it.
ENOUGH_WAYS = ("walk", "chunks of 2", "numba")


@pytest.fixture
def small(recurrence, structure):
    return recurrence(structure, rows=2, length=5, scale=0.8)


@pytest.fixture
def run(small, scan):
    def of(*tensors, **options):
        now = small.rebuilt(tensors)
        return scan(now.transition, now.bias, now.initial, **options)

    return of


@pytest.fixture
def walked(small, oracle):
    def of(*tensors):
        now = small.rebuilt(tensors)
        return oracle(now.transition, now.bias, now.initial)

    return of


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda function, backend="aot_eager", **options: torch.compile(function, fullgraph=True, backend=backend, **options)
    torch._dynamo.reset()


def members(tensors, count=3):
    """`count` different versions of each tensor, along a new first dimension."""
    return [torch.stack([tensor + 0.1 * member for member in range(count)]) for tensor in tensors]


def test_vmap_equals_a_loop_over_the_members(run, small):
    many = members(small.tensors)
    expected = torch.stack([run(*(tensor[member] for tensor in many)) for member in range(3)])
    torch.testing.assert_close(vmap(run)(*many), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        vmap(lambda *tensors: run(*tensors, reverse=True))(*many)[0], run(*small.tensors, reverse=True), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (None, None, 0), (1, -1, None)], ids=str)
def test_vmap_over_some_inputs_equals_a_loop(run, small, mapped):
    many = [tensor if dim is None else members([tensor])[0].movedim(0, dim) for tensor, dim in zip(small.tensors, mapped, strict=True)]

    def member(index):
        return [tensor if dim is None else tensor.select(dim, index) for tensor, dim in zip(many, mapped, strict=True)]

    expected = torch.stack([run(*member(index)) for index in range(3)])
    torch.testing.assert_close(vmap(run, in_dims=mapped)(*many), expected, rtol=1e-12, atol=1e-12)


def test_vmap_inside_vmap_equals_two_loops(run, small):
    many = members(members(small.tensors), 2)
    expected = torch.stack([torch.stack([run(*(tensor[i, j] for tensor in many)) for j in range(3)]) for i in range(2)])
    torch.testing.assert_close(vmap(vmap(run))(*many), expected, rtol=1e-12, atol=1e-12)


def test_vmap_over_no_members_gives_none(run, small):
    assert vmap(run)(*(tensor.new_empty(0, *tensor.shape) for tensor in small.tensors)).shape == (0, 2, 5, 6)


def test_vmap_over_packed_sequences_equals_a_loop(recurrence, scan):
    case = recurrence(rows=1, length=9, segments=3)
    offsets = torch.tensor(PACKED)

    def run(*tensors):
        now = case.rebuilt(tensors)
        return scan(now.transition, now.bias, now.initial, cu_seqlens=offsets)

    many = members(case.tensors)
    expected = torch.stack([run(*(tensor[member] for tensor in many)) for member in range(3)])
    torch.testing.assert_close(vmap(run)(*many), expected, rtol=1e-12, atol=1e-12)
    gradient = vmap(grad(lambda *tensors: run(*tensors).square().sum(), argnums=2))(*many)
    assert gradient.shape == (3, 3, 6)
    assert gradient[:, 0].eq(0).all()


def test_a_scan_without_gradients_still_obeys_transforms(run, walked, small):
    tensors, tangents = tuple(small.tensors), tuple(torch.ones_like(tensor) for tensor in small.tensors)
    with torch.no_grad():
        torch.testing.assert_close(run(*tensors), walked(*tensors), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(vmap(run)(*members(tensors))[0], walked(*tensors), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(jvp(run, tensors, tangents), jvp(walked, tensors, tangents), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_does_not_touch_a_recurrence_in_float32(recurrence, structure, scan, half):
    case = recurrence(structure, dtype=torch.float32, scale=0.8)

    def answers():
        now = case.requiring_grad()
        states = scan(now.transition, now.bias, now.initial)
        tangent = jvp(lambda maps: scan(type(now.transition)(maps), case.bias, case.initial), (case.tensors[0],), (case.tensors[0],))[1]
        return states, tangent, *torch.autograd.grad(states.square().sum(), now.tensors)

    expected = answers()
    with torch.autocast("cpu", dtype=half):
        found = answers()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_traced_scan_is_one_node_and_can_be_replayed(recurrence, structure):
    from torch.fx.experimental.proxy_tensor import make_fx

    case = recurrence(structure, length=9)

    def run(*tensors):
        now = case.rebuilt(tensors)
        with torch.no_grad():
            return pararnn.scans.scan(now.transition, now.bias, now.initial)

    graph = make_fx(run, tracing_mode="symbolic")(*case.tensors)
    assert sum(node.target is torch.ops.pararnn.scan.default for node in graph.graph.nodes) == 1
    other = recurrence(structure, length=9, seed=1).tensors
    torch.testing.assert_close(graph(*other), run(*other), rtol=1e-12, atol=1e-12)


def test_torch_func_grad_equals_autograd_through_the_walk(run, walked, small):
    everything = tuple(range(len(small.tensors)))
    found = grad(lambda *tensors: run(*tensors).square().sum(), argnums=everything)(*small.tensors)
    expected = grad(lambda *tensors: walked(*tensors).square().sum(), argnums=everything)(*small.tensors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_gradients_per_member_equal_a_loop(run, walked, small):
    many = members(small.tensors)
    found = vmap(grad(lambda *tensors: run(*tensors).square().sum(), argnums=(0, 1, 2)))(*many)
    for index in range(3):
        expected = grad(lambda *tensors: walked(*tensors).square().sum(), argnums=(0, 1, 2))(*(tensor[index] for tensor in many))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[index], other, rtol=1e-9, atol=1e-9)


def test_jvp_equals_that_of_the_walk(run, walked, small):
    tensors = tuple(small.tensors)
    tangents = tuple(torch.randn_like(tensor) for tensor in tensors)
    torch.testing.assert_close(jvp(run, tensors, tangents), jvp(walked, tensors, tangents), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("moving", range(3), ids=["maps", "terms", "initial"])
def test_jvp_of_one_input_equals_that_of_the_walk(run, walked, small, moving):
    def alone(function):
        def of(tensor):
            return function(*small.tensors[:moving], tensor, *small.tensors[moving + 1 :])

        return of

    pair = (small.tensors[moving],), (torch.ones_like(small.tensors[moving]),)
    torch.testing.assert_close(jvp(alone(run), *pair), jvp(alone(walked), *pair), rtol=1e-9, atol=1e-9)


def test_jvp_of_packed_sequences_equals_that_of_their_walks(recurrence, scan, oracle):
    case = recurrence(rows=1, length=9, segments=3, scale=0.8)
    offsets = torch.tensor(PACKED)

    def along(function):
        def of(*tensors):
            now = case.rebuilt(tensors)
            return function(now.transition, now.bias, now.initial, cu_seqlens=offsets, reverse=True)

        return of

    pair = tuple(case.tensors), tuple(torch.ones_like(tensor) for tensor in case.tensors)
    torch.testing.assert_close(jvp(along(scan), *pair), jvp(along(oracle), *pair), rtol=1e-9, atol=1e-9)


def test_dual_numbers_of_forward_mode_carry_the_tangent(run, walked, small):
    from torch.autograd import forward_ad

    tangents = [torch.randn_like(tensor) for tensor in small.tensors]
    results = []
    for function in (run, walked):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(tensor, tangent) for tensor, tangent in zip(small.tensors, tangents, strict=True)]
            results.append(forward_ad.unpack_dual(function(*duals)).tangent)
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transform", [jacrev, jacfwd], ids=["jacrev", "jacfwd"])
def test_full_jacobians_equal_those_of_the_walk(run, walked, small, transform):
    for one, other in zip(transform(run, (0, 1, 2))(*small.tensors), transform(walked, (0, 1, 2))(*small.tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_hessians_equal_that_of_the_walk(recurrence, scan, oracle):
    case = recurrence(rows=1, length=4, size=2)

    def loss(function):
        def of(maps):
            now = case.rebuilt([maps, *case.tensors[1:]])
            return function(now.transition, now.bias, now.initial).pow(3).sum()

        return of

    expected = hessian(loss(oracle))(case.tensors[0])
    for mixed in (hessian, lambda function: jacrev(jacrev(function)), lambda function: jacrev(jacfwd(function))):
        torch.testing.assert_close(mixed(loss(scan))(case.tensors[0]), expected, rtol=1e-9, atol=1e-9)


def test_forward_over_forward_is_refused_and_not_wrong(recurrence, scan):
    case = recurrence(rows=1, length=4, size=2)

    def states(maps):
        now = case.rebuilt([maps, *case.tensors[1:]])
        return scan(now.transition, now.bias, now.initial)

    with pytest.raises(DifferentiationError, match=r"jacrev of torch\.func\.jacfwd"):
        jacfwd(jacfwd(states))(case.tensors[0])


def test_vjp_of_a_complex_scan_equals_that_of_the_walk(recurrence, scan, oracle):
    case = recurrence(length=5, dtype=torch.complex128)

    def along(function):
        return lambda *tensors: function(*(lambda now: (now.transition, now.bias, now.initial))(case.rebuilt(tensors)))

    _, mine = vjp(along(scan), *case.tensors)
    _, theirs = vjp(along(oracle), *case.tensors)
    for one, other in zip(mine(case.bias), theirs(case.bias), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("packing", "initial", "reverse"),
    [(None, True, False), (None, False, True), (PACKED, True, True), (PACKED, False, False)],
    ids=["one sequence from a state", "one sequence backwards", "packed from states backwards", "packed"],
)
def test_a_compiled_scan_equals_the_eager_one_with_its_gradients(
    structure, recurrence, compiled, same_gradients, tolerance, reverse, initial, packing
):
    offsets = None if packing is None else torch.tensor(packing)
    case = recurrence(structure, rows=2 if packing is None else 1, length=9, segments=None if packing is None else 3, initial=initial, scale=0.8)

    def run(transition, bias, initial, **options):
        return pararnn.scans.scan(transition, bias, initial, backend="torch", **options)

    graph = compiled(run)
    options = {"reverse": reverse, "cu_seqlens": offsets}
    states = graph(case.transition, case.bias, case.initial, **options)
    torch.testing.assert_close(states, run(case.transition, case.bias, case.initial, **options), **tolerance["states"])
    same_gradients(graph, case, **options)


def test_a_compiled_scan_takes_other_lengths_and_offsets_without_recompiling(recurrence, compiled, oracle, tolerance):
    def run(transition, bias, cu_seqlens):
        return pararnn.scans.scan(transition, bias, cu_seqlens=cu_seqlens)

    graph = compiled(run, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for bounds in ([0, 4, 9], [0, 0, 20], [0, 11, 12]):
            case = recurrence(rows=1, length=bounds[-1], segments=2, initial=False)
            offsets = torch.tensor(bounds)
            expected = oracle(case.transition, case.bias, cu_seqlens=offsets)
            torch.testing.assert_close(graph(case.transition, case.bias, offsets), expected, **tolerance["states"])


def test_a_compiled_scan_checks_the_offsets_it_is_run_with(recurrence, compiled):
    from pararnn.errors import InputError

    case = recurrence(rows=1, length=9, initial=False)
    graph = compiled(lambda transition, bias, offsets: pararnn.scans.scan(transition, bias, cu_seqlens=offsets))
    graph(case.transition, case.bias, torch.tensor([0, 4, 9]))
    with pytest.raises(InputError, match="at segment 1"):
        graph(case.transition, case.bias, torch.tensor([0, 10, 9]))


def test_a_scan_inside_compiled_surroundings_equals_the_eager_one(recurrence, compiled, tolerance):
    case = recurrence(rows=2, length=9, scale=0.8)

    def layer(weights, bias, initial):
        from pararnn.structures.diagonal import Diagonal

        return pararnn.scans.scan(Diagonal(torch.sigmoid(weights)), torch.tanh(bias), initial).square().mean()

    results = []
    for function in (layer, compiled(layer)):
        tensors = case.requiring_grad().tensors
        loss = function(*tensors)
        results.append((loss.detach(), *torch.autograd.grad(loss, tensors)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **tolerance["gradients"])


@pytest.mark.parametrize(
    ("dtype", "packing", "initial"),
    [(torch.float32, PACKED, True), (torch.float32, None, False), (torch.complex64, None, True)],
    ids=["packed from states", "one sequence", "one complex sequence from a state"],
)
def test_the_operator_is_what_it_tells_torch_it_is(structure, recurrence, packing, initial, dtype):
    offsets = None if packing is None else torch.tensor(packing)
    case = recurrence(structure, rows=1, length=9, segments=3, dtype=dtype, initial=initial).requiring_grad()
    start = None if case.initial is None else (case.initial.unsqueeze(0) if packing else case.initial[:1].unsqueeze(0)).detach().requires_grad_()
    arguments = (structure_path(type(case.transition)), list(case.transition.leaves()), case.bias, start, offsets, packing is not None, "torch")
    torch.library.opcheck(scan_op, arguments)
