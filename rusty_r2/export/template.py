# SPDX-License-Identifier: AGPL-3.0-or-later
"""A model's own chat template, said again in the language Ollama's servers speak.

Ollama wants a Go template and guesses one when it is given none: a file with another template was
"autodetected" as ChatML. So the pieces are derived here: the Jinja template inside the GGUF file is rendered
on marked conversations, what stands before and after each role's words is cut out, and the pieces are
proved on other conversations. A template that is not regular in this way is refused, never approximated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rusty_r2.errors import ConfigError, need

Conversation = list[dict[str, str]]
MARK = {"system": "⟦S⟧", "user": "⟦U⟧", "assistant": "⟦A⟧", "tool": "⟦T⟧"}
PROOFS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Hi"),),
    (("system", "Be brief."), ("user", "Hi")),
    (("user", "Hi"), ("assistant", "Hello."), ("user", "1 + 1?\nQuick.")),
    (
        *(("system", "Be brief."), ("user", "a {b} c"), ("assistant", "d")),
        *(("user", "e"), ("assistant", "f"), ("user", "g")),
    ),
)


class TemplateError(ConfigError):
    """A chat template cannot be rendered, or cannot be said in Go."""


@dataclass(frozen=True)
class Pieces:
    """What stands around the words of each role."""

    around: dict[str, tuple[str, str]]
    """text before and after the words, by role"""
    start: str
    """text at the start where no system message is given: often a system prompt of the model's own"""
    cue: str
    """text that asks the assistant to speak"""

    def render(self, messages: Conversation) -> str:
        """What the Go template makes of a conversation."""
        said = "".join(
            f"{self.around[m['role']][0]}{m['content']}{self.around[m['role']][1]}" for m in messages
        )
        start = "" if any(m["role"] == "system" for m in messages) else self.start
        return start + said + self.cue

    def to_go(self) -> str:
        """The same as a Go template."""
        start = f"{{{{ if not .System }}}}{_literal(self.start)}{{{{ end }}}}" if self.start else ""
        branches = ""
        for role, (before, after) in self.around.items():
            word = "else if" if branches else "if"
            branches += (
                f'{{{{ {word} eq .Role "{role}" }}}}{_literal(before)}{{{{ .Content }}}}{_literal(after)}'
            )
        return f"{start}{{{{ range .Messages }}}}{branches}{{{{ end }}}}{{{{ end }}}}{_literal(self.cue)}"

    @property
    def stop(self) -> str:
        """The text that ends an answer, where there is one."""
        return self.around["assistant"][1].strip()


def derive(template: str, *, bos: str = "", eos: str = "", adds_bos: bool = False) -> Pieces:
    """The pieces of a Jinja chat template; TemplateError where it is not made of such."""

    def render(roles: tuple[str, ...], cue: bool = False) -> str:
        messages = [{"role": role, "content": MARK[role]} for role in roles]
        return render_jinja(template, messages, bos=bos, eos=eos, cue=cue)

    alone, asked = render(("user",)), _maybe(render, ("system", "user"))
    opened = ("system", "user") if asked is not None else ("user",)
    first = asked if asked is not None else alone
    answered = render((*opened, "assistant"))
    again = render((*opened, "assistant", "user"))
    around = {
        "user": _split(_rest(again, answered), MARK["user"]),
        "assistant": _split(_rest(answered, first), MARK["assistant"]),
    }
    user = MARK["user"].join(around["user"])
    if asked is not None:
        around = {"system": _split(_front(asked, user), MARK["system"]), **around}
    used = _maybe(render, (*opened, "assistant", "tool"))
    if used is not None and used.startswith(answered) and MARK["tool"] in used:
        around["tool"] = _split(_rest(used, answered), MARK["tool"])
    start = _front(alone, user)
    if adds_bos and bos:  # the tokenizer adds it: written here it would stand there twice
        start = start.removeprefix(bos)
        if "system" in around:
            before, after = around["system"]
            around["system"] = (before.removeprefix(bos), after)
    pieces = Pieces(around, start, _rest(render(opened, cue=True), first))
    _prove(pieces, template, bos, eos, adds_bos)
    return pieces


def render_jinja(
    template: str, messages: Conversation, *, bos: str = "", eos: str = "", cue: bool = True
) -> str:
    """A conversation as the model's own template writes it, without a clock: a deployed text has no today."""
    need("jinja2", extra="export")
    from jinja2 import TemplateError as JinjaError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise JinjaError(message)

    rules = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    rules.globals["raise_exception"] = refuse
    try:
        return rules.from_string(template).render(
            messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=cue, tools=None
        )
    except Exception as error:  # a template is a program of its maker's, and may fail in any way
        raise TemplateError(f"the chat template cannot be rendered: {error}") from error


def _maybe(render: Any, roles: tuple[str, ...]) -> str | None:
    """None where the template refuses such a conversation, or leaves out what was said."""
    try:
        text: str = render(roles)
    except TemplateError:
        return None
    return text if all(MARK[role] in text for role in roles) else None


def _rest(longer: str, shorter: str) -> str:
    if not longer.startswith(shorter):
        raise TemplateError("the chat template changes earlier turns when later ones come")
    return longer[len(shorter) :]


def _front(text: str, back: str) -> str:
    if not text.endswith(back):
        raise TemplateError("the chat template writes the first request unlike the later ones")
    return text[: len(text) - len(back)]


def _split(text: str, mark: str) -> tuple[str, str]:
    before, found, after = text.partition(mark)
    if not found or mark in after:
        raise TemplateError("the chat template leaves out or repeats what was said")
    return before, after


def _prove(pieces: Pieces, template: str, bos: str, eos: str, adds_bos: bool) -> None:
    """Other conversations come out equal, or the pieces are not believed."""
    for proof in PROOFS:
        messages = [{"role": role, "content": content} for role, content in proof]
        if any(role not in pieces.around for role, _ in proof):
            continue
        wanted = render_jinja(template, messages, bos=bos, eos=eos)
        if adds_bos and bos:
            wanted = wanted.removeprefix(bos)
        if pieces.render(messages) != wanted:
            raise TemplateError("the chat template is not made of one piece per role")


def _literal(text: str) -> str:
    """Text that Go's template language leaves alone."""
    return text.replace("{{", '{{ "{{" }}')
