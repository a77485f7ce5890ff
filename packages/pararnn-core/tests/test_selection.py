import dataclasses
import time
import types

import pytest

from pararnn import findings
from pararnn.errors import AmbiguousNameError, BackendError
from pararnn.findings import Finding, Outcome
from pararnn.registry import Registry
from pararnn.selection import REMEMBERED, Request, clear_cache, select

REQUEST = Request.of("toy/op", batch=8, time=4096)


@pytest.fixture
def registry_of(candidate):
    def make(*backends, distribution="toy-cells"):
        return Registry.of([candidate(distribution=distribution, pararnn_register_backends=list(backends))], environ={})

    return make


def test_a_request_is_a_value():
    assert Request.of("a", batch=8, options={"b": 1, "a": 2}) == Request.of("a", batch=8, options={"a": 2, "b": 1})
    assert len({REQUEST, dataclasses.replace(REQUEST), dataclasses.replace(REQUEST, needs_grad=True)}) == 2


def test_a_request_reads_device_and_dtype_as_torch_writes_them():
    request = Request.of("a", device="cuda:1", dtype="torch.bfloat16")
    assert (request.device, request.dtype) == ("cuda", "bfloat16")


def test_a_request_gives_sizes_and_options():
    request = Request.of("a", options={"block": 2}, batch=8)
    assert request.size("batch") == 8
    assert request.size("state", 1) == 1
    assert request.option("block") == 2
    assert request.option("other", "none") == "none"
    with pytest.raises(BackendError, match="no axis 'state'"):
        request.size("state")


def test_auto_takes_the_highest_priority_that_can_serve(registry_of, backend, objects):
    objects.no_gpu = lambda request: ("the tensors are on the cpu",)
    registry = registry_of(backend("slow"), backend("fast", priority=5), backend("gpu", priority=9, reasons="fake_objects:no_gpu"))
    selection = select(REQUEST, registry=registry)
    assert selection.backend.name == "fast"
    assert selection.implementation() == "served"
    assert [(one.label, one.reasons) for one in selection.considered] == [("gpu", ("the tensors are on the cpu",)), ("fast", ()), ("slow", ())]


def test_what_was_passed_over_is_kept_with_its_obstacles(registry_of, backend, objects):
    objects.no_gpu = lambda request: ("the tensors are on the cpu",)
    registry = registry_of(backend("slow"), backend("fast", priority=5), backend("gpu", priority=9, reasons="fake_objects:no_gpu"))
    assert [(one.label, one.reasons) for one in select(REQUEST, registry=registry).passed_over] == [("gpu", ("the tensors are on the cpu",))]
    assert select(REQUEST, "slow", registry=registry).passed_over == ()


def test_a_candidate_is_for_the_device_of_its_engine_and_for_any_without_one(registry_of, backend, objects):
    def on_gpu():
        return "served"

    on_gpu.engine = lambda: types.SimpleNamespace(device="cuda")
    objects.on_gpu = on_gpu
    objects.never = lambda request: ("busy",)
    gpu = dataclasses.replace(backend("gpu", priority=9, reasons="fake_objects:never"), target="fake_objects:on_gpu")
    selection = select(REQUEST, registry=registry_of(backend("slow"), gpu, backend("fast", priority=5, reasons="fake_objects:never")))
    assert {one.label: (one.is_for("cpu"), one.is_for("cuda")) for one in selection.passed_over} == {"gpu": (False, True), "fast": (True, True)}


def test_to_tell_its_device_what_crashed_is_not_imported(registry_of, backend, objects):
    registry = registry_of(backend("slow"), dataclasses.replace(backend("fast", priority=5), target="fake_objects:not_there"))
    findings.write({findings.key(registry.backends("toy/op")["fast"]): Finding(outcome=Outcome.CRASHED, detail="signal 11, SIGSEGV")})
    (one,) = select(REQUEST, registry=registry).passed_over
    assert one.is_for("cpu")
    assert "signal 11" in one.reasons[0]


def test_a_tie_goes_by_name(registry_of, backend, objects):
    assert select(REQUEST, registry=registry_of(backend("b"), backend("a"))).backend.name == "a"


def test_explain_shows_the_whole_table_on_success(registry_of, backend, objects):
    objects.two_reasons = lambda request: ("no gpu", f"batch is {request.size('batch')}, at most 4 is supported")
    registry = registry_of(backend("slow"), backend("gpu", priority=9, reasons="fake_objects:two_reasons"))
    assert select(REQUEST, registry=registry).explain().splitlines() == [
        "toy/op on cpu, float32, batch=8 time=4096, without gradient: slow (asked for: auto)",
        "   backend  priority  from           verdict",
        "   gpu      9         toy-cells 1.0  no gpu",
        "                                     batch is 8, at most 4 is supported",
        "*  slow     0         toy-cells 1.0  can serve",
    ]


def test_a_named_backend_is_taken_whatever_its_priority(registry_of, backend, objects):
    assert select(REQUEST, "slow", registry=registry_of(backend("slow"), backend("fast", priority=5))).backend.name == "slow"


def test_a_named_backend_does_not_ask_the_others(registry_of, backend, objects):
    objects.asked = lambda request: pytest.fail("asked")
    select(REQUEST, "slow", registry=registry_of(backend("slow"), backend("fast", priority=5, reasons="fake_objects:asked")))


def test_a_named_backend_that_cannot_serve_is_an_error_with_the_table(registry_of, backend, objects):
    objects.no_gpu = lambda request: ("the tensors are on the cpu",)
    registry = registry_of(backend("slow"), backend("gpu", priority=9, reasons="fake_objects:no_gpu"))
    with pytest.raises(
        BackendError, match=r"'gpu' was asked for and cannot serve toy/op on cpu(.|\n)*the tensors are on the cpu(.|\n)*slow .*can serve"
    ):
        select(REQUEST, "gpu", registry=registry)


def test_no_backend_that_can_serve_is_an_error_with_the_table(registry_of, backend, objects):
    objects.never = lambda request: ("never",)
    with pytest.raises(BackendError, match=r"no backend can serve toy/op(.|\n)*a .*never\n.*b .*never") as caught:
        select(REQUEST, registry=registry_of(backend("a", reasons="fake_objects:never"), backend("b", reasons="fake_objects:never")))
    assert [one.label for one in caught.value.data["considered"]] == ["a", "b"]


@pytest.mark.parametrize(("op", "step"), [("s4/cauchy", "pip install pararnn-s4"), ("other/op", "there are toy/op")])
def test_an_operation_nobody_serves_says_what_to_do(registry_of, backend, op, step):
    with pytest.raises(BackendError, match=step):
        select(Request.of(op), registry=registry_of(backend()))


def test_an_unknown_backend_lists_the_names(registry_of, backend):
    with pytest.raises(BackendError, match="no backend named 'keops'; there are auto, slow, fast"):
        select(REQUEST, "keops", registry=registry_of(backend("slow"), backend("fast")))


def broken(request):
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("function", "obstacle"),
    [(broken, "ZeroDivisionError: oops"), (lambda request: None, "None"), (lambda request: "sentence", "'sentence'"), (None, "cannot be imported")],
    ids=["raises", "nothing", "text", "missing"],
)
def test_a_faulty_reasons_function_is_an_obstacle(registry_of, backend, objects, function, obstacle):
    if function is not None:
        objects.faulty = function
    registry = registry_of(backend("slow"), backend("faulty", priority=9, reasons="fake_objects:faulty"))
    selection = select(REQUEST, registry=registry)
    assert selection.backend.name == "slow"
    (reason,) = selection.considered[0].reasons
    assert reason.startswith("its reasons function failed: ")
    assert obstacle in reason


def test_backends_of_one_name_are_told_apart_by_distribution(candidate, backend, objects):
    candidates = [candidate(name, distribution=f"dist-{name}", pararnn_register_backends=[backend("torch")]) for name in "ab"]
    registry = Registry.of(candidates, environ={})
    assert select(REQUEST, registry=registry).backend.provenance.distribution == "dist-a"
    assert select(REQUEST, "dist-b:torch", registry=registry).backend.provenance.distribution == "dist-b"
    with pytest.raises(AmbiguousNameError, match="'dist-a:torch' or 'dist-b:torch'"):
        select(REQUEST, "torch", registry=registry)


def test_a_repeated_question_is_not_asked_again_until_the_cache_is_cleared(registry_of, backend, objects):
    asked = []
    objects.count = lambda request: asked.append(request) or ()
    registry = registry_of(backend(reasons="fake_objects:count"))
    first = select(REQUEST, registry=registry)
    assert select(dataclasses.replace(REQUEST), registry=registry) is first
    assert len(asked) == 1
    clear_cache(registry)
    select(REQUEST, registry=registry)
    assert len(asked) == 2


def test_a_failure_is_asked_again(registry_of, backend, objects):
    obstacles = ["no gpu"]
    objects.changing = lambda request: tuple(obstacles)
    registry = registry_of(backend(reasons="fake_objects:changing"))
    with pytest.raises(BackendError):
        select(REQUEST, registry=registry)
    obstacles.clear()
    assert select(REQUEST, registry=registry).backend.name == "fast"


def test_a_stream_of_new_shapes_does_not_grow_the_memory_without_end(registry_of, backend, objects):
    registry = registry_of(backend())
    for length in range(REMEMBERED + 10):
        select(Request.of("toy/op", time=length), registry=registry)
    assert len(registry.memo) <= REMEMBERED


def test_a_repeated_question_costs_microseconds(registry_of, backend, objects):
    registry = registry_of(backend())
    select(REQUEST, registry=registry)

    def seconds(repeats=1000):
        start = time.perf_counter()
        for _ in range(repeats):
            select(REQUEST, registry=registry)
        return (time.perf_counter() - start) / repeats

    # The best of many rounds, with room for a busy machine: about 1 us is usual, asking the backends takes more than 20.
    assert min(seconds() for _ in range(10)) < 5e-6


def test_auto_avoids_what_crashed_and_a_name_overrules_it(registry_of, backend, objects):
    registry = registry_of(backend("slow"), backend("fast", priority=5))
    fast = registry.backends("toy/op")["fast"]
    findings.write({findings.key(fast): Finding(outcome=Outcome.CRASHED, detail="signal 11, SIGSEGV")})
    selection = select(REQUEST, registry=registry)
    assert selection.backend.name == "slow"
    assert "signal 11, SIGSEGV" in selection.explain()
    assert select(REQUEST, "fast", registry=registry).backend is fast


def test_a_crash_before_an_upgrade_no_longer_counts(candidate, backend, objects):
    old, new = (Registry.of([candidate(version=version, pararnn_register_backends=[backend()])], environ={}) for version in ("1.0", "1.1"))
    findings.write({findings.key(old.backends("toy/op")["fast"]): Finding(outcome=Outcome.CRASHED, detail="signal 11")})
    with pytest.raises(BackendError, match="signal 11"):
        select(REQUEST, registry=old)
    assert select(REQUEST, registry=new).backend.name == "fast"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": {"outcome": "odd"}}', '{"a": {"outcome": "ok", "extra": 1}}', "\udcff"])
def test_a_record_that_cannot_be_read_is_ignored_with_a_log_line(registry_of, backend, objects, caplog, content):
    findings.path().parent.mkdir(parents=True)
    findings.path().write_bytes(content.encode(errors="surrogateescape"))
    assert select(REQUEST, registry=registry_of(backend())).backend.name == "fast"
    assert "ignored" in caplog.text


def test_findings_of_earlier_runs_are_kept(registry_of):
    findings.write({"a": Finding(outcome=Outcome.OK)})
    findings.write({"b": Finding(outcome=Outcome.FAILED, detail="x", seconds=1.5)})
    assert findings.read() == {"a": Finding(outcome=Outcome.OK), "b": Finding(outcome=Outcome.FAILED, detail="x", seconds=1.5)}
    assert [path.name for path in findings.path().parent.iterdir()] == ["doctor.json"]
