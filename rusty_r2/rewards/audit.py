# SPDX-License-Identifier: AGPL-3.0-or-later
"""Can the rewards be had without the work? The red team tries, before each training run and in CI.

    rusty rewards audit                                      the engine as it comes
    rusty rewards audit --reward mine.py:Brief               and with a reward of your own
    require_audit(engine)                                    the same in code: raises where it fails

Every cheat of redteam.py plays every request; its best result must stay at or below the floor, an
honest policy's worst must lie above it, and silence must not be paid more than a failed try.
A reward that breaks on any of these traces fails the audit too.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rusty_r2.rewards.base import BaseReward, RewardError
from rusty_r2.rewards.engine import RewardEngine, Score, default_rewards, group_totals
from rusty_r2.rewards.redteam import CHEATS, HONEST, REQUESTS, TOGETHER, Policy, failing, silent

FLOOR = 0.5
"""below the 0.6 from which a trace is labelled good"""


@dataclass(frozen=True)
class AuditConfig:
    reward: tuple[str, ...] = ()
    """rewards of your own beside the shipped ones: module:Class, FILE.py:Class, or FILE.py for all in it"""
    only: bool = False
    """audit the rewards given alone, without the shipped ones"""
    floor: float = FLOOR
    """the most a cheat may get"""
    all: bool = False
    """show every policy, not only those that fail and the best of the rest"""


@dataclass(frozen=True)
class Finding:
    """What one policy got, at its extreme."""

    policy: str
    honest: bool
    worst: str
    """the request it did that on"""
    score: float
    """the best of a cheat, the worst of an honest policy"""
    told: str
    ok: bool


@dataclass(frozen=True)
class AuditReport:
    floor: float
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.ok)

    @property
    def ok(self) -> bool:
        return not self.failures

    def table(self, *, everything: bool = True) -> str:
        shown = [one for one in self.findings if everything or not one.ok or one.honest]
        cheats = [one for one in self.findings if one.ok and not one.honest]
        best = max(cheats, key=lambda one: one.score, default=None)
        if best is not None and best not in shown:
            shown.append(best)
        width = max(len(one.policy) for one in shown)
        head = f"{'policy':<{width}}  {'kind':<6}  score  request  why"
        lines = [
            f"{one.policy:<{width}}  {'honest' if one.honest else 'cheat':<6}  {one.score:5.2f}"
            f"  {one.worst:<7}  {'' if one.ok else 'FAILS: '}{one.told}"
            for one in sorted(shown, key=lambda one: (one.honest, -one.score))
        ]
        return "\n".join([head, *lines])


def audit(config: AuditConfig) -> str:
    """Let the red team play against the shipped rewards and your own."""
    own = [reward for name in config.reward for reward in load_rewards(name)]
    if config.only and not own:
        raise RewardError(
            "--only needs a reward of your own. Type: rusty rewards audit --reward FILE.py:Class --only"
        )
    report = run_audit(RewardEngine(own if config.only else [*default_rewards(), *own]), floor=config.floor)
    print(report.table(everything=config.all))
    _raise_on_failure(report)
    cheats = sum(not finding.honest for finding in report.findings)
    return f"{cheats} cheats at or below {report.floor:g}, honest work above it\nnext: rusty data kto"


def require_audit(engine: RewardEngine, *, floor: float = FLOOR) -> AuditReport:
    """The audit as a gate: returns where it holds, raises RewardError where it does not."""
    report = run_audit(engine, floor=floor)
    _raise_on_failure(report)
    return report


def run_audit(engine: RewardEngine | None = None, *, floor: float = FLOOR) -> AuditReport:
    """Let every policy play every request under `engine`."""
    engine = engine or RewardEngine()
    findings = [_extreme(engine, name, policy, floor, honest=False) for name, policy in CHEATS.items()]
    findings += [_extreme(engine, name, policy, floor, honest=True) for name, policy in HONEST.items()]
    findings += [_silence(engine)]
    return AuditReport(floor, tuple(findings))


def _extreme(engine: RewardEngine, name: str, policy: Policy, floor: float, *, honest: bool) -> Finding:
    traces = [policy(request) for request in REQUESTS]
    # one by one, as an online trainer asks; only what shows in many traces is judged together
    asked = [traces] if name in TOGETHER else [[trace] for trace in traces]
    scores = [score for some in asked for score in engine.score_all(some)]
    masked = next((score.masked for score in scores if score.masked), "")
    if masked:
        raise RewardError(f"the audit could not run: {masked}")
    # where no reward applies an honest trace has no score, and a cheat earns nothing
    known = [(one.total or 0.0, request, one) for request, one in zip(REQUESTS, scores, strict=True)]
    judged = [one for one in known if not (honest and one[2].total is None)] or known
    total, request, score = (min if honest else max)(judged, key=lambda one: one[0])
    ok = total > floor if honest else total <= floor
    return Finding(name, honest, request.kind, total, _why(score), ok)


def _silence(engine: RewardEngine) -> Finding:
    """The most by which saying nothing beats trying and failing; at most nothing."""
    lead, kind = 0.0, REQUESTS[0].kind
    for request in REQUESTS:
        tried, quiet = group_totals(engine.score_all([failing(request), silent(request)]))
        if tried is not None and quiet is not None and quiet - tried > lead:
            lead, kind = quiet - tried, request.kind
    told = "silence is paid more than a failed try" if lead else "never paid more than a failed try"
    return Finding("silence", False, kind, lead, told, not lead)


def _why(score: Score) -> str:
    return f"veto: {score.veto}" if score.veto else str(score).partition(" = ")[2] or str(score)


def _raise_on_failure(report: AuditReport) -> None:
    if not report.ok:
        names = ", ".join(finding.policy for finding in report.failures[:5])
        raise RewardError(
            f"{len(report.failures)} of {len(report.findings)} policies break the audit ({names}). "
            "Mend the reward, then type: rusty rewards audit --all"
        )


def load_rewards(name: str) -> list[BaseReward]:
    """The rewards a user names: `module:Class`, `FILE.py:Class`, or `FILE.py` for every one in it."""
    where, _, wanted = name.rpartition(":") if ":" in name else (name, "", "")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where, name)
    if wanted:
        kinds = [getattr(module, wanted, None)]
    else:
        kinds = [kind for kind in vars(module).values() if _is_own(kind, module)]
    if not kinds or not all(inspect.isclass(kind) and issubclass(kind, BaseReward) for kind in kinds):
        raise RewardError(f"{name} names no reward: a class derived from BaseReward. See docs/rewards.md")
    try:
        return [kind() for kind in kinds if kind is not None]
    except TypeError as error:
        raise RewardError(f"{name} cannot be made without arguments: {error}") from error


def _is_own(kind: object, module: ModuleType) -> bool:
    ours = inspect.isclass(kind) and issubclass(kind, BaseReward) and not inspect.isabstract(kind)
    return ours and getattr(kind, "__module__", "") == module.__name__


def _load_module(where: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ImportError as error:
        raise RewardError(f"{name} cannot be imported: {error}. Say module:Class or FILE.py:Class") from error


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rusty_rewards_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise RewardError(f"{path} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RewardError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
