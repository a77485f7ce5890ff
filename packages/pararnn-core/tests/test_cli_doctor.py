import json
import os
import sys

import pytest
from click.testing import CliRunner

from pararnn import findings
from pararnn.cli import main
from pararnn.errors import PluginWarning
from pararnn.findings import Outcome
from pararnn.probing import probe
from pararnn.registry import Registry, using
from pararnn.specs import OpSpec

PROBES = """
import os, signal, sys, time
def good(): print("compiling"); return None
def missing(): return ("no gpu here", "no nvcc either")
def wants(): import no_such_library
def fails(): raise ValueError("wrong numbers")
def leaves(): sys.exit("giving up")
def dies(): os.kill(os.getpid(), signal.SIGSEGV)
def vanishes(): os._exit(0)
def aborts_at_exit():
    import atexit
    atexit.register(os.abort)
def sleeps(): time.sleep(60)
def reasons(request): return ()
"""


@pytest.fixture
def trial(tmp_path, monkeypatch, backend):
    """A backend whose probe is a function of PROBES, importable in child processes and here."""
    (tmp_path / "fake_probes.py").write_text(PROBES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name, **fields: backend(name, probe=f"fake_probes:{name}", reasons="fake_probes:reasons", **fields)
    sys.modules.pop("fake_probes", None)


def registry_of(candidate, *backends):
    return Registry.of([candidate(pararnn_register_backends=list(backends))], environ={})


@pytest.mark.parametrize(
    ("name", "outcome", "detail"),
    [
        ("good", "ok", ""),
        ("missing", "unavailable", "no gpu here; no nvcc either"),
        ("wants", "unavailable", "No module named 'no_such_library'"),
        ("fails", "failed", "ValueError: wrong numbers"),
        ("leaves", "failed", "SystemExit: giving up"),
        ("absent", "failed", "absent"),
        ("dies", "crashed", "signal 11, SIGSEGV (Fatal Python error: Segmentation fault)"),
        ("vanishes", "crashed", "exit status 0 without an answer"),
        ("aborts_at_exit", "crashed", "SIGABRT"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_probe_ends_as(candidate, trial, name, outcome, detail):
    finding = probe(registry_of(candidate, trial(name)).backends("toy/op")[name], timeout=60)
    assert finding.outcome is Outcome(outcome)
    assert detail in finding.detail


def test_a_probe_in_a_module_that_does_not_exist_is_a_failure_of_the_plugin(candidate, backend):
    finding = probe(registry_of(candidate, backend(probe="no_such_package.probes:probe")).backends("toy/op")["fast"], timeout=60)
    assert finding.outcome is Outcome.FAILED


def test_a_probe_that_takes_too_long_is_stopped(candidate, trial):
    finding = probe(registry_of(candidate, trial("sleeps")).backends("toy/op")["sleeps"], timeout=0.5)
    assert finding.outcome is Outcome.FAILED
    assert "0.5 s" in finding.detail
    assert finding.seconds < 30


def doctor(registry, *arguments):
    with using(registry):
        return CliRunner().invoke(main, ["doctor", *arguments])


def test_doctor_on_a_healthy_machine_ends_with_status_0(candidate, trial):
    result = doctor(registry_of(candidate, trial("good"), trial("missing", priority=3)), "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["healthy"]
    assert {one["backend"]: one["outcome"] for one in document["backends"]} == {"good": "ok", "missing": "unavailable"}
    assert document["selection"][0]["chosen"] == "missing"
    assert document["environment"]["python"].startswith(f"{sys.version_info.major}.")
    assert result.stderr == ""


def test_a_backend_that_crashes_is_recorded_avoided_and_status_1(candidate, trial):
    registry = registry_of(candidate, trial("good"), trial("dies", priority=9))
    result = doctor(registry, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert not document["healthy"]
    assert document["selection"][0]["chosen"] == "good"
    assert "SIGSEGV" in document["selection"][0]["candidates"][0]["reasons"][0]
    assert findings.crash_of(registry.backends("toy/op")["dies"]).startswith("signal 11")


COMPLEX_OP = """
import torch
from pararnn.selection import Request
def probe(): return None
def whole(request): return () if request.dtype == "complex64" and request.size("copies") == 7 else ("complex64, and seven copies, only",)
def sequences(request): return () if request.dtype == "complex64" and request.size("rows") else ("complex64 only",)
def example(seed, *, device, dtype): return [(Request.of("toy/op", device=device, dtype=dtype, copies=7), (), {})]
def failing(seed, *, device, dtype): raise RuntimeError("no example today")
"""


@pytest.mark.parametrize(
    ("example", "reasons"),
    [("fake_complex:example", "whole"), ("fake_complex:failing", "sequences"), ("", "sequences")],
    ids=["ok", "failing", "none"],
)
def test_backends_are_asked_about_the_dtype_of_their_operation_and_a_call_of_its_example(candidate, backend, tmp_path, monkeypatch, example, reasons):
    (tmp_path / "fake_complex.py").write_text(COMPLEX_OP)
    monkeypatch.syspath_prepend(str(tmp_path))
    op = OpSpec(name="toy/op", target="fake_complex:probe", summary="", dtype="complex64", example=example)
    ours = backend("complex", probe="fake_complex:probe", reasons=f"fake_complex:{reasons}")
    registry = Registry.of([candidate(pararnn_register_ops=[op], pararnn_register_backends=[ours])], environ={})
    (selection,) = [one for one in json.loads(doctor(registry, "--quick", "--json").stdout)["selection"] if one["device"] == "cpu"]
    assert (selection["dtype"], selection["chosen"]) == ("complex64", "complex")
    sys.modules.pop("fake_complex", None)


def test_a_quick_run_tries_nothing_and_shows_the_last_outcomes(candidate, trial, monkeypatch):
    registry = registry_of(candidate, trial("good"), trial("sleeps"))
    entry = registry.backends("toy/op")["good"]
    findings.write({findings.key(entry): findings.Finding(outcome=Outcome.OK, seconds=2.5)})
    monkeypatch.setattr("pararnn.cli.doctor.probe", lambda *_, **__: pytest.fail("tried"))
    document = json.loads(doctor(registry, "--quick", "--json").stdout)
    assert [one["outcome"] for one in document["backends"]] == ["ok", "not tried"]


def test_operations_that_share_a_probe_share_its_child_process(candidate, trial, monkeypatch):
    tried = []

    def record(entry, *, timeout):
        tried.append(entry)
        return findings.Finding(outcome=Outcome.OK)

    monkeypatch.setattr("pararnn.cli.doctor.probe", record)
    document = json.loads(doctor(registry_of(candidate, trial("good", op="a"), trial("good", op="b")), "--json").stdout)
    assert len(tried) == 1
    assert [one["outcome"] for one in document["backends"]] == ["ok", "ok"]


def test_a_broken_plugin_ends_with_status_1(candidate):
    with pytest.warns(PluginWarning):
        registry = Registry.of([candidate(pararnn_register_cells=lambda: 1 / 0)], environ={})
    result = doctor(registry, "--quick")
    assert result.exit_code == 1
    assert "1 broken plugin(s)" in result.stdout


def test_a_rival_for_the_import_name_is_reported(candidate, monkeypatch):
    monkeypatch.setattr("pararnn.cli.doctor.import_name_rivals", lambda: ("pararnn-torch",))
    result = doctor(registry_of(candidate), "--quick")
    assert "pip uninstall pararnn-torch" in result.stdout.replace("\n", " ")
    assert json.loads(doctor(registry_of(candidate), "--quick", "--json").stdout)["import_name_rivals"] == ["pararnn-torch"]


def test_the_tables_show_environment_plugins_outcomes_and_choices(candidate, trial):
    result = doctor(registry_of(candidate, trial("good")))
    assert result.exit_code == 0
    for text in ("Environment", "python", "Plugins", "toy-cells", "Backends", "good", "auto takes"):
        assert text in result.stdout


def test_outcomes_that_cannot_be_kept_are_an_error_with_a_remedy(candidate, trial, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    result = doctor(registry_of(candidate, trial("good")))
    assert result.exit_code == 1
    assert "XDG_CACHE_HOME" in result.stderr


@pytest.fixture
def eighty(monkeypatch):
    """A terminal of the usual width."""
    monkeypatch.setenv("COLUMNS", "80")


def compilers(folder, monkeypatch, **variables):
    """A machine where the variables are these, and PATH has a compiler named gcc."""
    from pararnn.compiler.native import toolchain

    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(toolchain, "compiler", lambda: toolchain.Compiler((str(variables.get("CC", "gcc")),), "gcc 12.2.0\nCopyright", ()))


def test_the_c_compiler_is_shown_with_its_version_and_how_it_was_found(candidate, monkeypatch, tmp_path):
    compilers(tmp_path, monkeypatch)
    found = json.loads(doctor(registry_of(candidate), "--quick", "--json").stdout)["environment"]["C compiler"]
    assert found.endswith("found on PATH as gcc, since CC and CXX are not set: gcc 12.2.0")


def test_the_c_compiler_is_shown_with_the_variable_that_names_it(candidate, monkeypatch, tmp_path):
    compilers(tmp_path, monkeypatch, CC="/opt/my-cc")
    found = json.loads(doctor(registry_of(candidate), "--quick", "--json").stdout)["environment"]["C compiler"]
    assert found == "/opt/my-cc, named by CC: gcc 12.2.0"


def test_a_variable_that_was_passed_over_is_told(candidate, monkeypatch, tmp_path):
    compilers(tmp_path, monkeypatch, CXX="nonsense")
    found = json.loads(doctor(registry_of(candidate), "--quick", "--json").stdout)["environment"]["C compiler"]
    assert "found on PATH as gcc, since CXX=nonsense does not work" in found


def test_without_a_c_compiler_the_reason_is_shown_and_the_verdict_says_what_follows(candidate, monkeypatch):
    from pararnn.compiler.native import toolchain

    monkeypatch.setattr(toolchain, "compiler", lambda: None)
    monkeypatch.setattr(toolchain, "reasons", lambda: ("no C compiler works here; install gcc",))
    document = json.loads(doctor(registry_of(candidate), "--quick", "--json").stdout)
    assert document["environment"]["C compiler"] == "none: no C compiler works here; install gcc"
    assert "run in plain PyTorch on the CPU, for want of a C compiler." in document["verdict"]


def test_the_last_line_is_a_verdict_in_one_sentence(candidate, trial):
    lines = " ".join(doctor(registry_of(candidate, trial("good"), trial("missing"))).stdout.split())
    assert "pararnn is well: 1 of 2 backends work on this machine, and steps of cells" in lines
    assert lines.endswith(".")


def test_the_verdict_counts_what_needs_repair(candidate, trial):
    assert "pararnn needs repair (1 backend crashed): 0 of 1 backends work" in " ".join(doctor(registry_of(candidate, trial("dies"))).stdout.split())


def test_a_reason_that_holds_for_several_is_said_once(candidate, trial):
    registry = registry_of(candidate, *(trial("missing", op=f"toy/{letter}") for letter in "abc"), trial("good", op="toy/a"))
    shown = " ".join(doctor(registry).stdout.split())
    assert shown.count("no gpu here; no nvcc either") == 1
    assert "- missing for toy/a, toy/b, toy/c: no gpu here" in shown


def test_names_are_whole_at_eighty_columns(candidate, trial, eighty):
    op, distribution = "family/operation_with_a_name", "distribution-name"
    made = candidate("extension", distribution=distribution, pararnn_register_backends=[trial("aborts_at_exit", op=op), trial("good", op=op)])
    shown = doctor(Registry.of([made], environ={})).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for name in (op, distribution, "aborts_at_exit", "crashed", "extension"):
        assert name in shown
