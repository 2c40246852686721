# SPDX-License-Identifier: AGPL-3.0-or-later
"""A person's own folder as the place an agent works in: the gym's two verbs, the gym's words, real files.

    place = Workspace(Path("."), approval=Approval("writes", asker))
    place.reset(options={"query": "fix the failing test"})
    place.step('{"action": "CMD", "command": "pytest -q"}')

A command runs in the sandbox on a copy-on-write view of the folder. What it changed is then shown, asked
about if the person wants to be asked, and carried over through journal.py; so nothing changes unseen and
everything can be undone. A dry run is the same without the carrying over. Where the machine offers no
such view (levels bwrap and landlock), commands run in the folder itself and the question comes first.
Protected paths (`.git/hooks`, `.env`, …, at any depth) stay as they are either way, and in the view files of
secrets are empty. Who is asked and when is in approval.py, what a person sees in screen.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rusty_r2.agent.approval import YES, Allow, Answer, Approval
from rusty_r2.agent.carry import carry_over, compared, failed
from rusty_r2.agent.diff import diff
from rusty_r2.agent.journal import Journal, Undone
from rusty_r2.agent.named import named
from rusty_r2.agent.protected import PROTECTED, is_protected, matters, on_disk, secrets
from rusty_r2.agent.telling import some
from rusty_r2.closing import Closing
from rusty_r2.errors import ConfigError, ProtocolError, RustyError, SandboxError, TaskError
from rusty_r2.gym.env import clip, shown
from rusty_r2.gym.sandbox import Change, Limits, Mode, Result, Sandbox, open_sandbox
from rusty_r2.protocol import Cmd, Edit, Msg, parse
from rusty_r2.task import clean_path

LIMITS = Limits(
    wall_s=60, cpu_s=60, mem_process=64 << 30, mem_tree=4 << 30, nproc=256, nofile=1024,
    fsize=512 << 20, disk=512 << 20, inodes=100_000,
)  # fmt: skip
"""a person's projects need more room than the gym's tasks"""


class Watcher(Protocol):
    """Whoever wants to see what is done, as it is done."""

    def command(self, command: str) -> None: ...
    def result(self, result: Result) -> None: ...
    def edit(self, lines: list[str]) -> None: ...
    def changes(self, changes: Sequence[Change], *, dry: bool) -> None: ...
    def notice(self, text: str) -> None: ...


class Unseen:
    """Nobody looks on."""

    def command(self, command: str) -> None: ...
    def result(self, result: Result) -> None: ...
    def edit(self, lines: list[str]) -> None: ...
    def changes(self, changes: Sequence[Change], *, dry: bool) -> None: ...
    def notice(self, text: str) -> None: ...


class Workspace(Closing):
    """One folder of a person."""

    def __init__(
        self,
        folder: Path,
        *,
        allow: Allow = "workspace",
        approval: Approval | None = None,
        watcher: Watcher | None = None,
        limits: Limits = LIMITS,
        level: str = "auto",
        max_output: int = 4000,
        max_malformed: int = 3,
    ) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder. Type: --workspace FOLDER")
        self.folder, self.limits, self.level = folder.resolve(), limits, level
        self.approval = approval or Approval()
        self.watcher: Watcher = watcher or Unseen()
        self.journal = Journal(self.folder)
        self.cancel = threading.Event()
        """set it to end the command that runs now"""
        self.left: list[str] = []
        """what the newest action changed that could not be kept, with the reason"""
        self.max_output, self.max_malformed = max_output, max_malformed
        self._dry, self._copies, self._malformed, self._used = False, True, 0, ""
        self._failed: tuple[Cmd | Edit, str] | None = None
        self._no: Answer | None = None
        self._hidden: set[str] = set()
        self._box: Sandbox | None = None
        self._allow: Allow = "workspace"
        self.allow = allow

    @property
    def allow(self) -> Allow:
        return self._allow

    @allow.setter
    def allow(self, wanted: Allow) -> None:
        """ConfigError where this machine offers no network that leaves secrets unseen."""
        self.close()
        before, self._allow = self._allow, wanted
        try:
            if wanted == "network":
                self._opened()
        except RustyError:
            self._allow = before
            raise

    @property
    def dry(self) -> bool:
        return self._dry

    @dry.setter
    def dry(self, wanted: bool) -> None:
        """ConfigError where this machine offers no dry run."""
        self.close()
        self._dry = wanted
        try:
            if wanted:
                self._opened()
        except RustyError:
            self._dry = False
            raise

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """A new request: `options["query"]`. Files may have changed since the last one, so look again."""
        if not self._dry:
            self.close()
        query = (options or {}).get("query", "")
        self._malformed, self._failed, self._no, self._used, self.left = 0, None, None, "", []
        self.cancel.clear()
        self.journal.begin(query)
        told, code = named(self.folder, query, self.max_output)
        if code:
            self.watcher.notice(f"shown with the request: {', '.join(code)}")
        return query + told, {}

    def step(self, reply: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out one reply; whatever it says, what comes back is an observation."""
        try:
            action = parse(reply)
            self._malformed = 0
            if isinstance(action, Msg):
                return "", 0.0, True, False, self._info()
            self.left = []
            seen, ok = self._edit(action) if isinstance(action, Edit) else self._command(action)
        except ProtocolError as error:
            return self._malformed_reply(error)
        except SandboxError as error:
            self.watcher.notice(str(error))
            self.close()
            seen = "SYSTEM_MSG: the sandbox failed; this does not count."
            return seen, 0.0, False, True, self._info(masked=True, why=str(error))
        no, self._no = self._no, None
        if no is not None and no.ended:
            return seen, 0.0, False, True, self._info(ok=False, ended=no.ended)
        ok = ok and no is None
        before, self._failed = self._failed, None if ok else (action, seen)
        if before is not None and before == self._failed:  # a third time would not help either
            self.watcher.notice("the same again, and it failed in the same way: stopped")
            return seen, 0.0, False, True, self._info(ok=False, ended="repeats")
        return seen, 0.0, False, False, self._info(ok=ok)

    def undo(self) -> Undone:
        """Take back what the newest request changed."""
        self.close()
        return self.journal.undo()

    def close(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            box.close()

    # ── EDIT ────────────────────────────────────────────────────────────────────────────────────

    def _edit(self, action: Edit) -> tuple[str, bool]:
        try:
            path = self._writable(action.path)
            content = action.content.encode()
            self.watcher.edit(diff(path, self._content(path), content))
            if not self._dry:
                answer = self.approval.before_writing(action)
                if not answer.yes:
                    return self._told_no(answer, "said no", f"not written: {path}"), False
            self._write(path, content)
        except (TaskError, OSError) as error:
            told = f"EDIT refused: {_why(error)}"
            self.left = [f"{action.path} ({_why(error)})"] if getattr(error, "errno", None) else []
            self.watcher.notice(told)
            return f"SYSTEM_MSG: {told}", False
        return f"wrote {path}", True

    def _writable(self, path: str) -> str:
        """`path` cleaned; OSError where it is not the agent's to write."""
        path = clean_path(path)
        if self.allow == "read":
            raise OSError("the folder is read-only here (the person said: --allow read)")
        if is_protected(path):
            raise OSError(f"{path} is protected")
        return path

    def _content(self, path: str) -> bytes | None:
        """What the file holds now, in the dry run's view where there is one."""
        try:
            return self._opened().read(path) if self._dry else on_disk(self.folder, path)
        except FileNotFoundError:
            return None

    def _write(self, path: str, content: bytes) -> None:
        if self._dry:
            self._opened().write(path, content)
        else:
            self.close()
            self.journal.write(path, content)

    # ── CMD ─────────────────────────────────────────────────────────────────────────────────────

    def _command(self, action: Cmd) -> tuple[str, bool]:
        box = self._opened()
        self._used = box.level  # told when the view is closed, too
        copied = self._dry or self._copies or self.allow == "read"
        harmless = copied and self.allow != "network"  # what was sent away cannot be taken back
        self.watcher.command(action.command)
        quiet = self._dry and harmless
        answer = YES if quiet else self.approval.before_running(action, harmless=harmless)
        if not answer.yes:
            return self._told_no(answer, "said no", f"not run: {clip(action.command, 200)}"), False
        command = action.command if answer.command is None else answer.command
        if command != action.command:
            self.watcher.command(command)
        before = None if copied else self._remembered(box)
        result = box.run(command, cancel=self.cancel)
        self.watcher.result(result)
        told = [shown(result, self.max_output)]
        if command != action.command:
            told.insert(0, f"SYSTEM_MSG: The user changed the command to: {command}")
        if copied:
            told += self._settle(Cmd(command), box, result)
        elif before is not None:
            self._note_changes(box, before)
        return "\n".join(told), result.ok

    def _settle(self, action: Cmd, box: Sandbox, result: Result) -> list[str]:
        """Show what the command changed in its copy, and carry it over if that is wanted."""
        changes = [c for c in result.changes or () if matters(c, self._hidden)]
        if not changes:
            return []
        self.watcher.changes(changes, dry=self._dry or self.allow == "read")
        open_ones = [c for c in changes if c.path not in self._hidden and not is_protected(c.path)]
        self.watcher.edit(compared(box, self.folder, open_ones, self.limits))
        if self._dry:
            return []
        if self.allow == "read":
            self.close()
            return [f"SYSTEM_MSG: The folder is read-only; not kept: {some(c.path for c in changes)}"]
        lost = all(is_protected(c.path) for c in changes)
        answer = YES if lost else self.approval.before_keeping(action)  # there is nothing to ask about
        try:
            if not answer.yes:
                undone = f"not kept: {some(c.path for c in changes)}"
                return [self._told_no(answer, "did not keep what this changed", undone)]
            left = carry_over(box, changes, self.journal, is_protected, self.limits)
        finally:
            self.close()
        self.left = failed(left, len(changes))
        if left:
            self.watcher.notice(f"not kept: {some(left)}")
        return [f"SYSTEM_MSG: Not kept: {some(left)}"] if left else []

    def _remembered(self, box: Sandbox) -> dict[str, bytes] | None:
        try:
            return box.files()
        except OSError:
            self.watcher.notice("the folder is too large to remember: what this changes cannot be undone")
            return None

    def _note_changes(self, box: Sandbox, before: dict[str, bytes]) -> None:
        """Write down what a command did to the folder itself; what is protected is put back at once."""
        try:
            after = box.files()
        except OSError:
            self.watcher.notice("the folder is too large now: what this changed cannot be undone")
            return
        changes = []
        for path in sorted({*before, *after}):
            if before.get(path) != after.get(path):
                self.journal.remember(path, before.get(path))
                if is_protected(path):
                    self._put_back(path, before.get(path))
                    continue
                kind = "deleted" if path not in after else "modified" if path in before else "added"
                changes.append(Change(kind, path, len(after.get(path, b""))))  # type: ignore[arg-type]
        if changes:
            self.watcher.changes(changes, dry=False)

    def _put_back(self, path: str, before: bytes | None) -> None:
        self.watcher.notice(f"{path} is protected and was put back")
        if before is None:
            self.journal.remove(path)
        else:
            self.journal.write(path, before)

    def _opened(self) -> Sandbox:
        if self._box is None:
            try:
                self._box = self._hiding(self._open("overlay", ()))
            except ConfigError:
                if self._dry or self.allow == "network":
                    raise
                self._copies = False
                self._box = self._open("ro" if self.allow == "read" else "rw", PROTECTED)
        return self._box

    def _hiding(self, box: Sandbox) -> Sandbox:
        """Files of secrets are empty in the view: what a command does not see, no model repeats."""
        for path in secrets(self.folder):
            with contextlib.suppress(OSError):  # a link: what it leads to is outside, or is not a secret
                box.write(path, b"")
                self._hidden.add(path)
        return box

    def _open(self, mode: Mode, protect: tuple[str, ...]) -> Sandbox:
        """In a view nothing needs protection: what is carried over is looked at then."""
        try:
            return open_sandbox(
                level=self.level, workspace=self.folder, mode=mode, limits=self.limits, protect=protect,
                network="host" if self.allow == "network" else "none",
            )  # fmt: skip
        except OSError as error:
            raise SandboxError(f"the folder cannot be opened in the sandbox: {error}") from error

    # ── words ───────────────────────────────────────────────────────────────────────────────────

    def _told_no(self, answer: Answer, did: str, undone: str) -> str:
        """A no in words, for the model or only for the trace: `step` sees whether it goes on."""
        self._no = answer
        if not answer.asked:
            return f"SYSTEM_MSG: nobody to ask, so {undone}"
        return f"SYSTEM_MSG: The user {did}{': ' + answer.note if answer.note else ''}"

    def _malformed_reply(self, error: ProtocolError) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._malformed += 1
        over = self._malformed >= self.max_malformed
        self.watcher.notice(f"not an action ({error}); " + ("given up" if over else "asked again"))
        seen = f"SYSTEM_MSG: Invalid format: {error}. {error.hint}"
        info = self._info(valid=False) | ({"ended": "malformed"} if over else {})
        return seen, 0.0, False, over, info

    def _info(self, **facts: Any) -> dict[str, Any]:
        return {"level": self._box.level if self._box else self._used, "valid": True, "ok": True, **facts}


def _why(error: Exception) -> str:
    return clip(getattr(error, "strerror", None) or str(error), 200)
