# SPDX-License-Identifier: AGPL-3.0-or-later
"""C++ where a compiler exists: `library(source)` compiles one file on first use and loads it.

The result lies in the data home under cache/native/, named by everything that went into it (source,
the headers beside it, flags, compiler, processor), so a second process loads what the first compiled
and a changed source never meets an old library. Two processes at once each compile and the last
rename wins; a home that cannot be written falls back to a private folder for this process.

Without a compiler, or with RUSTY_NATIVE=0, the answer is None and callers take their Python way.
The libraries speak plain C through ctypes: nothing of torch or Python is compiled in. They are never
linked with -ffast-math, which would switch off denormal numbers for the whole process.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from functools import lru_cache
from pathlib import Path

from rusty_r2.config import home

log = logging.getLogger(__name__)

_BASE = ("-O3", "-std=c++17", "-fPIC", "-shared")
_TRIES = (("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ())
"""From the fastest to what any compiler takes; the first that compiles and loads is used."""

_loaded: dict[tuple[Path, tuple[str, ...]], ctypes.CDLL | None] = {}
_lock = threading.Lock()


def library(source: Path, *, flags: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The compiled and loaded `source`, or None where that is impossible or not wanted."""
    if not wanted():
        return None
    key = (source.resolve(), tuple(flags))
    with _lock:
        if key not in _loaded:
            _loaded[key] = _make(*key)
        return _loaded[key]


def wanted() -> bool:
    """Whether the user allows native code: RUSTY_NATIVE=0 says no."""
    return os.environ.get("RUSTY_NATIVE", "1") != "0"


def keep_memory() -> bool:
    """Ask the C library to keep freed memory: training frees and takes the same tens of megabytes each step.

    Without this glibc gives every block over 128 KiB back to the kernel, which fills it with zeros again.
    True where it was done (Linux with glibc); call it once at a training process's start.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    trim, mmap_threshold = -1, -3
    largest = 32 * 1024 * 1024  # glibc refuses a higher threshold
    return bool(mallopt(mmap_threshold, largest)) and bool(mallopt(trim, 2**31 - 1))


def compiler() -> str | None:
    """The C++ compiler that would be used: $CXX, else c++, g++ or clang++ from the path."""
    given = os.environ.get("CXX")
    return next(
        (path for name in (given, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None
    )


def cached(source: Path, *, flags: tuple[str, ...] = ()) -> Path:
    """Where the library of `source` is kept, compiled or not."""
    parts = [source.read_bytes(), *(header.read_bytes() for header in sorted(source.parent.glob("*.h")))]
    parts += [" ".join(flags).encode(), _version(compiler() or "").encode(), _processor().encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    return home() / "cache" / "native" / f"{source.stem}-{digest}.so"


def _make(source: Path, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    target = cached(source, flags=flags)
    if target.exists() and (found := _load(target)) is not None:
        return found
    if (command := compiler()) is None:
        log.info("no C++ compiler found: %s runs without its native form", source.name)
        return None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            return _compile(command, source, flags, Path(folder) / target.name, target)
    except OSError:  # a home that cannot be written: an open library outlives its file
        with tempfile.TemporaryDirectory(prefix="rusty-native-") as folder:
            return _compile(command, source, flags, Path(folder) / target.name, None)


def _compile(
    command: str, source: Path, flags: tuple[str, ...], fresh: Path, target: Path | None
) -> ctypes.CDLL | None:
    said = ""
    for extra in _TRIES:
        words = [command, *_BASE, *extra, *flags, "-o", str(fresh), str(source)]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        said = said or done.stderr.strip()
        if done.returncode == 0 and (found := _load(fresh)) is not None:
            if target is not None:
                os.replace(fresh, target)  # noqa: PTH105
            return found
    log.warning("%s could not compile %s, going on without it: %s", command, source.name, said[:500])
    return None


def _load(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.info("%s does not load: %s", path, error)
        return None


@lru_cache
def _version(command: str) -> str:
    if not command:
        return ""
    return (
        command + subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    )


@lru_cache
def _processor() -> str:
    """What -march=native depends on: the architecture and the processor's own feature list."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
    keep = ("flags", "Features", "model name", "CPU implementer", "CPU part", "vendor_id", "cpu family")
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(keep)})])
