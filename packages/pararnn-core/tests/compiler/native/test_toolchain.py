"""The compiler of this machine: found, missing, failing, and what it made kept and repaired."""

import shutil
import subprocess
import sys

import pytest

from pararnn.compiler.native import toolchain
from pararnn.errors import CompilationError

SOURCE = "int answer(void) { return 42; }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("PARARNN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_source_is_compiled_once_and_kept(folder, monkeypatch):
    assert toolchain.library(SOURCE).answer() == 42
    monkeypatch.setattr(toolchain, "_compile", lambda *arguments: pytest.fail("compiled again"))
    assert toolchain.library(SOURCE).answer() == 42


def test_another_source_is_another_library(folder):
    toolchain.library(SOURCE)
    assert toolchain.library(SOURCE.replace("42", "43")).answer() == 43


@pytest.mark.parametrize("size", [0, 4, 3000, -100], ids=["empty", "a few bytes", "some", "nearly all"])
def test_a_library_that_was_cut_off_is_built_again(folder, size):
    source = SOURCE.replace("42", str(1000 + size))
    text = f"import os; from pararnn.compiler.native import toolchain; toolchain.library({source!r})"
    # In a process of its own: a loaded library stays loaded under its name.
    subprocess.run([sys.executable, "-c", text], check=True)
    (file,) = folder.glob("native-*.so")
    file.write_bytes(file.read_bytes()[:size])
    assert toolchain.library(source).answer() == 1000 + size


def test_a_folder_that_was_deleted_is_made_again(folder):
    toolchain.library(SOURCE)
    shutil.rmtree(folder)
    assert toolchain.library(SOURCE.replace("42", "44")).answer() == 44


def test_a_library_that_cannot_be_kept_is_an_error_with_the_folder(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(toolchain, "_compile", full)
    with pytest.raises(CompilationError, match="No space left on device") as caught:
        toolchain.library(SOURCE)
    assert str(folder) in str(caught.value)
    assert "PARARNN_CACHE_DIR" in str(caught.value)


def test_what_the_compiler_says_is_in_the_error(folder):
    with pytest.raises(CompilationError, match="nonsense") as caught:
        toolchain.library("nonsense here;")
    assert "NewtonConfig(backend='torch')" in str(caught.value)
    assert not list(folder.glob("*.so"))


def test_without_a_compiler_the_reasons_say_what_to_install(folder, monkeypatch):
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(folder))
    (reason,) = toolchain.reasons()
    assert "install gcc" in reason
    with pytest.raises(CompilationError, match="no C compiler works here"):
        toolchain.library(SOURCE)


def test_without_a_folder_for_libraries_the_reason_says_so(folder, monkeypatch):
    def nowhere():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(toolchain.cache, "folder", nowhere)
    (reason,) = toolchain.reasons()
    assert "No usable temporary directory found" in reason
    assert "PARARNN_CACHE_DIR" in reason


def test_the_reason_repeats_what_a_failing_compiler_says(folder, monkeypatch, tmp_path):
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'math.h: no such file' >&2\nexit 1\n")
    fake.chmod(0o755)
    for name, value in (("CC", ""), ("CXX", str(fake)), ("PATH", str(folder))):
        monkeypatch.setenv(name, value)
    (reason,) = toolchain.reasons()
    assert f"{fake} (math.h: no such file)" in reason
    assert "install gcc" in reason
    monkeypatch.setenv("CXX", "an 'unfinished quotation")
    (reason,) = toolchain.reasons()
    assert "No closing quotation" in reason


def test_cc_goes_before_the_others_and_may_have_options(folder, monkeypatch):
    found = toolchain.compiler()
    monkeypatch.setenv("CC", " ".join((*found.command, "-Wall")))
    assert toolchain.compiler().command == (*found.command, "-Wall")


@pytest.mark.parametrize(
    ("named", "fault"),
    [
        ("no-such-compiler", "no-such-compiler (there is no such command)"),
        ("false", "non-zero exit status 1"),
        ("an 'unfinished", "No closing quotation"),
    ],
)
def test_a_cc_that_does_not_work_is_refused_instead_of_replaced(folder, monkeypatch, named, fault):
    monkeypatch.setenv("CC", named)
    assert toolchain.compiler() is None
    (reason,) = toolchain.reasons()
    assert reason.startswith("CC names a C compiler that does not work here")
    assert fault in reason
    with pytest.raises(CompilationError, match="set CC to another, or unset it"):
        toolchain.library(SOURCE)


def test_a_cc_that_compiles_nothing_is_refused_with_what_it_says(folder, monkeypatch, tmp_path):
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\nif [ \"$1\" = --version ]; then echo fake; else echo 'math.h: no such file' >&2; exit 1; fi\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    (reason,) = toolchain.reasons()
    assert f"{fake} (math.h: no such file)" in reason


def test_a_cxx_that_does_not_work_is_passed_over_because_it_names_no_c_compiler(folder, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert toolchain.compiler().command[0] in toolchain.CANDIDATES


@pytest.mark.integration
def test_processes_that_compile_at_once_do_not_disturb_each_other(folder):
    text = f"from pararnn.compiler.native import toolchain; assert toolchain.library({SOURCE!r}).answer() == 42"
    running = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(list(folder.glob("native-*.so"))) == 1
