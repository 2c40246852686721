# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty export check`: the gate. A file is tried against the model it came from before anybody trusts it.

    rusty export check exports/kto-3-Q4_K_M.gguf --against runs/kto-3
    report = check(file, against=folder);  report.passed

First the file alone (contents.py), then in a running llama.cpp (compare.py). What was found is printed as a
table and kept beside the file as NAME.check.json with the file's sha256; `rusty models promote` demands it.
A gate that could not ask a question says so, and does not pass.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rusty_r2 import __version__, files
from rusty_r2.errors import CheckpointError, ConfigError, RustyError
from rusty_r2.export import contents
from rusty_r2.export.contents import Contents, Finding
from rusty_r2.export.source import Source
from rusty_r2.run import LINEAGE, noted

ALONE = ("file", "header", "words", "types", "weights")
RUNNING = ("tokens", "prompts", "predictions")
LEARNED = "training"
"""the one question about the model and not about the file"""


@dataclass(frozen=True)
class CheckConfig:
    file: Annotated[Path, tyro.conf.Positional]
    """the GGUF file"""
    against: str
    """the model it came from: a run, a folder, or smollm2"""
    positions: int = 256
    """places of the held-out text at which the next word is compared"""
    text: Path | None = None
    """another text to compare on"""
    tasks: int = 0
    """held-out tasks of the gym to play with the file and with --base; 0: none"""
    base: str = ""
    """whom the file must not be worse than, an address; default: the model it came from"""
    json: bool = False
    """print for scripts"""


@dataclass(frozen=True)
class CheckReport:
    """What the gate found."""

    passed: bool
    file: str
    sha256: str
    against: str
    quantization: str
    findings: tuple[Finding, ...]
    seconds: float
    version: str = __version__

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the questions that were answered badly."""
        return tuple(finding.name for finding in self.findings if not finding.passed)

    def table(self) -> str:
        width = max(len(finding.name) for finding in self.findings)
        lines = [f"{self.file} ({self.quantization or 'unknown type'}) against {self.against}"]
        for finding in self.findings:
            lines.append(f"  {'ok  ' if finding.passed else 'FAIL'}  {finding.name:<{width}}  {finding.said}")
        return "\n".join(lines)


def report_path(file: Path) -> Path:
    """Where the gate's answer about `file` lies."""
    return file.with_suffix(".check.json")


def gate(config: CheckConfig) -> str:
    """Check, print the table, keep it; a file that fails ends with exit code 1."""
    if config.positions < 8 or config.tasks < 0:
        raise ConfigError("--positions must be 8 or more, --tasks 0 or more")
    text = "" if config.text is None else _text(config.text)
    report = check(
        config.file,
        config.against,
        positions=config.positions,
        text=text,
        tasks=config.tasks,
        base=config.base,
    )
    kept = report_path(config.file)
    shown = json.dumps(asdict(report)) if config.json else report.table()
    if not report.passed:
        print(shown, flush=True)
        raise CheckpointError(f"{config.file} {_advice(report, config.against)} ({kept})")
    return shown if config.json else f"{shown}\n{kept}\nnext: rusty serve {config.file}"


def _advice(report: CheckReport, against: str) -> str:
    """What failed, and the command that may mend it."""
    failed, again = ", ".join(report.failed), f"rusty export gguf {against}"
    if report.failed == (LEARNED,):
        return "is the model, but training made that worse than its base. Train it otherwise: rusty train"
    if set(report.failed) <= {"predictions", "tasks"} and report.quantization not in ("F32", "F16", "BF16"):
        finer = "Q8_0" if report.quantization != "Q8_0" else "F16"
        return f"says too often something else: {failed} failed. Type: {again} --quantization {finer}"
    return f"is not the model: {failed} failed. Type: {again}"


def check(
    file: Path | str,
    against: Path | str,
    *,
    positions: int = 256,
    text: str = "",
    tasks: int = 0,
    base: str = "",
) -> CheckReport:
    """Try `file` against the model it came from, and keep the answer beside it."""
    start, path = time.monotonic(), Path(file)
    if not path.is_file():
        raise ConfigError(f"{path} is not a file. Make one: rusty export gguf {against}")
    files.write(report_path(path), "{}\n").unlink()  # where it cannot be kept, that is said before the work
    source = Source.open(against)
    findings, found = _alone(path, source)
    findings += _learned(source)
    if found is not None and all(
        finding.passed for finding in findings if finding.name in ("header", "types")
    ):
        findings += _running(path, source, found.quantization, positions, text)
        if tasks:
            from rusty_r2.export import compare

            played = base or f"hf:{source.folder}"
            findings.append(_answered("tasks", lambda: compare.tasks(path, played, tasks)))
    else:
        findings += [_not_asked(name) for name in (*RUNNING, *(("tasks",) if tasks else ()))]
    report = CheckReport(
        passed=all(finding.passed for finding in findings),
        file=str(path),
        sha256=files.digest(path),
        against=str(source.folder),
        quantization=found.quantization if found is not None else "",
        findings=tuple(findings),
        seconds=round(time.monotonic() - start, 1),
    )
    files.write(report_path(path), json.dumps(asdict(report), indent=1) + "\n")
    return report


def _alone(path: Path, source: Source) -> tuple[list[Finding], Contents | None]:
    """The file without running it."""
    try:
        found = Contents.read(path)
    except CheckpointError as error:
        return [Finding("file", False, str(error), {}), *(_not_asked(name) for name in ALONE[1:])], None
    findings = [Finding("file", True, f"{path.stat().st_size / 1e6:,.1f} MB, whole", {})]
    findings.append(_answered("header", lambda: contents.header(found, source)))
    findings.append(_answered("words", lambda: contents.words(found, source)))
    findings.append(_answered("types", lambda: contents.types(found, source)))
    if findings[-1].passed:
        findings.append(_answered("weights", lambda: contents.weights(found, source)))
    else:
        findings.append(_not_asked("weights"))
    return findings, found


def _learned(source: Source) -> list[Finding]:
    """What training found out about the model itself, where merging has written it down (train/merge.py)."""
    worse = noted(source.folder / LINEAGE).get("worse")
    if worse is None:
        return []
    said = "worse than its base" if worse else "not worse than its base"
    return [Finding(LEARNED, not worse, f"{said}, by the comparison at the end of its training", {})]


def _running(path: Path, source: Source, quantization: str, positions: int, text: str) -> list[Finding]:
    """The file in llama.cpp."""
    from rusty_r2.export import compare
    from rusty_r2.lm.llama import Llama

    try:
        llama = Llama(path, context=min(2048, int(source.config["max_position_embeddings"])))
    except RustyError as error:
        return [Finding("tokens", False, str(error), {}), *(_not_asked(name) for name in RUNNING[1:])]
    with llama:
        return [
            _answered("tokens", lambda: compare.tokens(llama, source)),
            _answered("prompts", lambda: compare.prompts(llama, source)),
            _answered(
                "predictions", lambda: compare.predictions(llama, source, quantization, positions, text)
            ),
        ]


def _answered(name: str, ask: Callable[[], Finding]) -> Finding:
    """The answer; where asking broke, that is a failure with its reason."""
    try:
        return ask()
    except RustyError as error:
        return Finding(name, False, str(error), {})


def _not_asked(name: str) -> Finding:
    return Finding(name, False, "not asked: the file is not sound enough to be run", {})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from error
