"""Files of compilers: written once, whole, wherever something can be written."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pararnn.compiler import cache


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("PARARNN_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_the_environment_names_the_folder(place, monkeypatch, tmp_path):
    assert cache.folder() == place
    monkeypatch.delenv("PARARNN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache.folder() == tmp_path / "caches" / "pararnn"


@pytest.mark.parametrize("content", ["text\n", b"\x00bytes"])
def test_a_file_is_kept_with_its_content_and_not_written_again(content):
    path = cache.keep("one.txt", content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    before = path.stat().st_mtime_ns
    assert cache.keep("one.txt", content) == path
    assert path.stat().st_mtime_ns == before


def test_a_half_written_file_is_replaced(place):
    place.mkdir()
    (place / "one.txt").write_text("half")
    assert cache.keep("one.txt", "whole text").read_text() == "whole text"


def test_many_writers_leave_one_whole_file(place):
    content = "x" * 100_000
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: cache.keep("many.txt", content), range(32)))
    assert {path.read_text() for path in paths} == {content}
    assert [file.name for file in place.iterdir()] == ["many.txt"]


@pytest.mark.integration
def test_processes_may_write_at_once(place):
    code = "from pararnn.compiler import cache; cache.keep('p.txt', 'y' * 50_000)"
    running = [subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PARARNN_CACHE_DIR": str(place)}) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert [(file.name, file.stat().st_size) for file in place.iterdir()] == [("p.txt", 50_000)]


def test_a_folder_that_cannot_be_written_to_is_replaced_by_a_temporary_one(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("PARARNN_CACHE_DIR", str(blocked / "kernels"))
    path = cache.keep("one.txt", "text")
    assert path.read_text() == "text"
    assert cache.folder() == path.parent
    assert not Path(path).is_relative_to(tmp_path / "file")


def test_a_folder_that_was_deleted_is_made_again(place):
    assert cache.folder() == place
    place.rmdir()
    assert cache.keep("one.txt", "text").read_text() == "text"
    assert cache.folder() == place


def test_a_relative_folder_is_that_of_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARARNN_CACHE_DIR", "here")
    assert cache.folder() == tmp_path / "here"


def test_a_user_without_a_home_gets_a_temporary_folder(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("PARARNN_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.keep("one.txt", "text").read_text() == "text"
