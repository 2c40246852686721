# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where text comes from: a folder, a Hugging Face dataset, or the machine you are sitting at.

    documents_of("notes/")              text, code, JSONL(.xz), datasets folders (lm/documents.py)
    documents_of("hf:openai/gsm8k:main")   a dataset by name, streamed
    documents_of("machine")             Python's library, installed packages, man pages, documentation

"machine" makes a real corpus with no network. Its files come in the order of a hash of their names, so
a capped build is a fair sample. Licences come from package metadata and from the distribution's
copyright files; where neither speaks, the licence is "unknown" and the manifest says so.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import re
import sysconfig
import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from rusty_r2.data.download import one_line
from rusty_r2.errors import DataError, need
from rusty_r2.lm.documents import Document, documents, read_text, text_of

MAN = Path("/usr/share/man")
DOC = Path("/usr/share/doc")
PACKAGES = Path("/var/lib/dpkg/info")

_SKIPPED = re.compile(
    r"(^|/)(tests?|idle_test|lib2to3|site-packages|__pycache__|_vendor|pydoc_data|unidata)(/|$)"
)
_ROFF_FONT = re.compile(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,:)]")
_ROFF_CHARS = {"\\-": "-", "\\e": "\\", "\\ ": " ", "\\~": " "}
_ROFF_CHARS |= {"\\(bu": "*", "\\(em": "--", "\\(en": "-", "\\(co": "(c)"}
_ROFF_CHARS |= {"\\(aq": "'", "\\(cq": "'", "\\(oq": "'", "\\(dq": '"', "\\(lq": '"', "\\(rq": '"'}
_ROFF_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def documents_of(source: str, *, licence: str = "unknown") -> Iterator[Document]:
    """Every document of a source, in a fixed order."""
    if source == "machine":
        return machine()
    if source.startswith("hf:"):
        return hub(source.removeprefix("hf:"), licence=licence)
    return documents(Path(source), licence=licence)


def hub(name: str, *, licence: str = "unknown") -> Iterator[Document]:
    """The train split of a dataset on the Hugging Face hub, streamed. `name` is OWNER/NAME[:CONFIG]."""
    datasets = need("datasets", extra="data")
    repository, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(repository, config or None, split="train", streaming=True)
        for row in rows:
            text = text_of(row)
            if text.strip():
                yield Document(text, f"hf:{name}", str(row.get("license") or licence))
    except Exception as error:  # the library has no common error of its own
        raise DataError(f"{name} could not be read from the hub: {one_line(error)}") from error


def machine() -> Iterator[Document]:
    """This machine's own Python sources, man pages and documentation."""
    found = [*_library(), *_installed(), *_manuals(), *_documentation()]
    for path, source, licence in sorted(found, key=lambda item: _shuffled(item[0])):
        text = _readable(path)
        if text is not None and len(text) > 200:
            yield Document(text, source, licence or _distribution_licence(path), str(path))


def _library() -> Iterator[tuple[Path, str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in root.rglob("*.py"):
        if not _SKIPPED.search(path.relative_to(root).as_posix()):
            yield path, "python-library", "PSF-2.0"


def _installed() -> Iterator[tuple[Path, str, str]]:
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        licence = _package_licence(package)
        for file in package.files or ():
            path = Path(str(package.locate_file(file)))
            if file.suffix == ".py" and not _SKIPPED.search(file.as_posix()) and path.is_file():
                yield path, f"python-package:{name}", licence


def _manuals() -> Iterator[tuple[Path, str, str]]:
    for section in "15678":
        for path in (MAN / f"man{section}").glob("*"):
            if path.is_file() and not path.is_symlink():
                yield path, "man-pages", ""


def _documentation() -> Iterator[tuple[Path, str, str]]:
    for path in DOC.rglob("*"):
        name = path.name.lower().removesuffix(".gz")
        wanted = name.startswith(("readme", "faq", "howto")) or name.endswith((".txt", ".md", ".rst"))
        if wanted and path.is_file() and not path.is_symlink():
            yield path, "documentation", ""


def _readable(path: Path) -> str | None:
    if path.suffix != ".gz":
        text = read_text(path)
    else:
        try:
            text = gzip.decompress(path.read_bytes()).decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            return None
    if text is not None and MAN in path.parents:
        return plain_manual(text)
    return text


def plain_manual(roff: str) -> str | None:
    """A man page without its typesetting; None for a page that only points to another."""
    if roff.startswith(".so "):
        return None
    lines: list[str] = []
    for typeset in roff.splitlines():
        line = _macro(typeset[1:].strip()) if typeset.startswith((".", "'")) else typeset
        if line is None:
            continue
        for code, char in _ROFF_CHARS.items():
            line = line.replace(code, char)
        lines.append(_ROFF_FONT.sub("", line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _macro(line: str) -> str | None:
    """What a typesetting line says in plain text; None where it says nothing."""
    name, _, rest = line.partition(" ")
    if name in ("SH", "SS", "Sh", "Ss"):
        return "\n" + rest.strip('"').upper()
    if name in ("PP", "P", "LP", "Pp", "sp", "TP", "IP", "It"):
        return "\n" + rest.strip() if name in ("It", "IP") and rest else ""
    if name in ("B", "I", "BR", "RB", "IR", "RI", "BI", "IB", "Nm", "Fl", "Ar", "Op", "Xr", "Nd"):
        return _ROFF_QUOTED.sub(lambda found: found[1], rest)
    return None


def _package_licence(package: importlib.metadata.Distribution) -> str:
    known = package.metadata
    for field in ("License-Expression", "License"):
        value = (known[field] or "").strip() if field in known else ""
        if value and "\n" not in value and len(value) < 80:
            return value
    classes = [line for line in known.get_all("Classifier") or [] if line.startswith("License ::")]
    return classes[0].rpartition(" :: ")[2] if classes else "unknown"


def _distribution_licence(path: Path) -> str:
    """The licence a Debian copyright file names for the package that owns `path`."""
    return _copyright(_owners().get(str(path), ""))


@lru_cache(maxsize=1)
def _owners() -> dict[str, str]:
    owners = {}
    for listing in PACKAGES.glob("*.list"):
        name = listing.stem.partition(":")[0]
        for line in listing.read_text(errors="replace").splitlines():
            if line.startswith((str(MAN), str(DOC))):
                owners[line] = name
    return owners


@cache
def _copyright(package: str) -> str:
    try:
        text = (DOC / package / "copyright").read_text(errors="replace") if package else ""
    except OSError:
        text = ""
    named = re.search(r"^License:[ \t]*([\w.+ -]{2,40})$", text, re.MULTILINE)
    if named:
        return named[1].strip()
    common = re.search(r"common-licenses/([\w.-]+\w)", text)
    return common[1] if common else "unknown"


def _shuffled(path: Path) -> bytes:
    return hashlib.blake2b(str(path).encode("utf-8", "replace"), digest_size=8).digest()
