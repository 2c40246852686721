# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compiling on first use: it runs, it is kept, it notices changes, and it never takes the program down."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2.lm import native

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RUSTY_NATIVE", raising=False)
    path = tmp_path / "src" / "answer.cpp"
    path.parent.mkdir()
    path.write_text('extern "C" int answer() { return 42; }\n')
    return path


def made(source: Path) -> list[Path]:
    return list(native.cached(source).parent.glob("*"))


@needs_compiler
def test_compiles_once_and_is_kept(source: Path) -> None:
    loaded = native.library(source)
    assert loaded is not None and loaded.answer() == 42
    assert made(source) == [native.cached(source)]
    assert native.library(source) is loaded


@needs_compiler
def test_a_changed_source_or_header_or_flag_is_another_library(source: Path) -> None:
    first = native.cached(source)
    assert native.cached(source, flags=("-DX",)) != first
    (source.parent / "h.h").write_text("// one")
    second = native.cached(source)
    source.write_text('extern "C" int answer() { return 43; }\n')
    assert len({first, second, native.cached(source)}) == 3


@needs_compiler
def test_a_broken_cache_file_is_compiled_again(source: Path) -> None:
    kept = native.cached(source)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"not a library")
    loaded = native.library(source)
    assert loaded is not None and loaded.answer() == 42
    assert ctypes.CDLL(str(kept)).answer() == 42


@needs_compiler
def test_a_source_that_does_not_compile_is_one_warning(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text("this is not C++\n")
    with caplog.at_level(logging.WARNING):
        assert native.library(source) is None
        assert native.library(source) is None
    assert len(caplog.records) == 1 and "answer.cpp" in caplog.text


@needs_compiler
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home_still_gives_a_library(source: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o500)
    loaded = native.library(source)
    assert loaded is not None and loaded.answer() == 42


@needs_compiler
def test_a_home_that_is_a_file_still_gives_a_library(source: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    loaded = native.library(source)
    assert loaded is not None and loaded.answer() == 42


ASK = """
import sys
from pathlib import Path
from rusty_r2.lm import native
print(native.library(Path(sys.argv[1])).answer())
"""


@needs_compiler
def test_two_processes_at_once(source: Path) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", ASK, str(source)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["42", "42"]
    assert made(source) == [native.cached(source)]


def test_it_can_be_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSTY_NATIVE", "0")
    assert native.library(source) is None
    assert not native.cached(source).exists()


def test_without_a_compiler_the_answer_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.library(source) is None
