# SPDX-License-Identifier: AGPL-3.0-or-later
"""Secrets do not enter a trace: known shapes and high-entropy values beside a telling name are cut out.

`redact` returns the text with each secret replaced by `[redacted:KIND]` and how many there were.
Hashes, ids and ordinary code survive: a value without a known shape must stand beside a word such
as password or token, or look random in a way that hexadecimal never does. In plain data (`redact_all`)
the word may be the value's key, or the flag before it in a list. Inside JSON inside a text (the replies of
our own protocol) quotes stand behind backslashes; what is cut leaves that JSON whole.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

SHORTEST = 10
"""characters; a shorter string holds no secret with the word that gives it away"""

_SHAPES = {
    "private-key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "aws-key": r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",
    "github-token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{22,255})",
    "gitlab-token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "api-key": r"\bsk-(?:ant-|proj-|or-|live-|test-)?[A-Za-z0-9_-]{16,}",
    "stripe-key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "slack-token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "google-key": r"\bAIza[0-9A-Za-z_-]{35}",
    "hub-token": r"\bhf_[A-Za-z0-9]{30,}",
    "registry-token": r"\b(?:pypi-[A-Za-z0-9_-]{40,}|npm_[A-Za-z0-9]{36}|dckr_pat_[A-Za-z0-9_-]{20,})",
    "mail-key": r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}",
    "oauth-token": r"\bya29\.[A-Za-z0-9_-]{20,}",
    "age-key": r"\bAGE-SECRET-KEY-1[0-9A-Z]{40,}",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
}
_STARTS = r"-----BEGIN|A[GIKRS]|SG\.|dckr|g[hil]|[rs]k[-_]|xox|hf_|pypi|npm_|eyJ|ya29"
"""of all shapes: where none of these stands, none is tried, which is ten times as fast"""
_ANY = "|".join(f"(?P<{kind.replace('-', '_')}>{shape})" for kind, shape in _SHAPES.items())
_SHAPE = re.compile(f"(?={_STARTS})(?:{_ANY})", re.S)
_URL = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.-]{1,20}://)(?:(?P<user>[^\s:/@'\"\[]{0,128}:)"
    r"(?P<secret>[^\s/'\"]{1,256}(?=@)|[^\s@'\"]{1,256}(?=@))|(?P<token>(?<=https://)\w{20,256}(?=@)))",
    re.I,
)
_BEARER = re.compile(
    r"(?P<before>\b(?:(?:bearer|basic)\s+|authorization\\{0,3}[\"']?\s*:\s*\\{0,3}[\"']?(?:[a-z][\w-]{1,20}\s+)?))"
    r"(?=[A-Za-z+/._~-]*(?-i:\d|=|[a-z][A-Z]))"  # not a word, as in "basic simplification"
    r"(?P<secret>[A-Za-z0-9+/._~-]{12,}=*)",
    re.I,
)
_TELLING = (
    r"(?:passw(?:or)?d|passphrase|secret|token(?!i[sz]|s\b|s_)|(?:api|access|account)[_-]?key|credential"
    r"|(?-i:_PASS\b|_PWD\b|(?:PRIVATE|ENCRYPTION|SIGNING|MASTER)_KEY\b))"
)
_NAMED = re.compile(
    rf"""(?P<before>{_TELLING}[\w-]{{0,40}}\\{{0,3}}["']?\s*(?::|=|:=|\s--?\s)\s*)(?P<quote>\\{{0,3}}["']?)
        (?P<secret>(?:[^\s"',;)}}\]\\]|\\(?!["'nrt\\])){{6,512}})""",
    re.I | re.X,
)
_VARIABLE = re.compile(r"(?P<name>[A-Z_]+)=")
"""of a shell or an .env file: its value is a value, never the name of one"""
_KEY = re.compile(rf"(?:.*[\W_])?(?:{_TELLING}|authorization)(?:[\W_]\w*)?", re.I | re.S)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARGUMENT = re.compile(r"--?(?:password|passwd|passphrase|token|api-key|secret)")
_FLAG = re.compile(
    rf"""(?P<before>(?:^|\s){_ARGUMENT.pattern}[= ]\\{{0,3}}["']?)(?P<secret>[^\s"'\\-][^\s"'\\]{{3,256}})"""
)
_RANDOM = re.compile(r"(?<![A-Za-z0-9+/_=.-])[A-Za-z0-9+/_-]{32,512}={0,2}(?![A-Za-z0-9+/_=-])")
_LOGIN = re.compile(
    r"""(?P<before>\b(?=[cdmps_])(?:
            curl\s(?:[^\n|;]{0,200}?\s)?(?:-[a-zA-Z]{0,8}u\s?|--user[=\ ])\\{0,3}["']?[^\s:"'\\]{1,64}:
            |(?:docker|podman)\slogin\s(?:[^\n|;]{0,200}?\s)?-p\s\\{0,3}["']?
            |sshpass\s+-p\s?\\{0,3}["']?
            |pass(?:in|out)?\s+pass:
            |machine\s+\S{1,100}\s+login\s+\S{1,64}\s+password\s+
            |(?<!\.)_auth=
        ))(?P<secret>[^\s"'\\]{4,256})""",
    re.X,
)
"""a password where a program or a file (.netrc, .npmrc) has its place for one"""
_CLIENT = r"(?:mysql\w*|mariadb[\w-]*|mydumper)"
"""programs that take a password glued to `-p`, also behind flags that have no value"""
_GLUED = r"(?:-[ABCEGHLNXbfinqrstvw]{0,6}p|--password=)"
_CLIENTS = re.compile(
    rf"""(?P<before>\b{_CLIENT}\s(?:(?:[^\n|;&\\]|\\(?!n)){{0,400}}?\s)?{_GLUED}(?P<quote>\\{{0,3}}["'])?)
        (?P<secret>(?(quote)(?:(?!(?P=quote)).){{1,256}}|(?:[^\s"'\\;|&<>)]|\\(?!["'nrt\\])){{1,256}}))""",
    re.X,
)
_PROGRAM = re.compile(rf"(?:.*/)?{_CLIENT}", re.S)
_GLUED_ARGUMENT = re.compile(rf"(?P<before>{_GLUED})(?P<secret>.+)", re.S)
_STAND_IN = re.compile(r"[A-Z_]+\d?|[\d.]*:?\d+:\d+(?:/\w+)?")  # PASSWORD, or a container's port 3306:3306
_PLACEHOLDER = re.compile(
    r"^[\[<{$(]|\$[{(]|\.\.\.|\.\*|x{4,}|\*{3}|your|example|changeme"
    r"|^(?:none|null|true|false|os\.|self\.|get)|^(?:password|passwd|token|secret)$",
    re.I,
)
_NAME = re.compile(rf"(?=\w*\.|\w*{_TELLING})[A-Za-z_]+(?:\.[A-Za-z_]+)*", re.I)


def redact(text: str) -> tuple[str, int]:
    """`text` without its secrets, and how many were cut."""
    if len(text) < SHORTEST:
        return text, 0
    count = 0

    def cut(kind: str, before: str = "") -> str:
        nonlocal count
        count += 1
        return f"{before}[redacted:{kind}]"

    def named(match: re.Match[str]) -> str:
        name, value = _VARIABLE.fullmatch(match["before"]), match["secret"]
        if name and "." not in value and value.upper() != name["name"]:
            found = _looks_secret(value) or ("PASS" in name["name"] and not _stands_in(value))
        else:
            code = not match["quote"] and _NAME.fullmatch(value)  # self.token = access.token
            found = not code and _looks_secret(value)
        return cut("named", match["before"] + match["quote"]) if found else match[0]

    def address(match: re.Match[str]) -> str:
        kept = _looks_secret(match["token"]) if match["token"] else not _PLACEHOLDER.match(match["secret"])
        return cut("url", match["before"] + (match["user"] or "")) if kept else match[0]

    def flag(match: re.Match[str]) -> str:
        return match[0] if _stands_in(match["secret"]) else cut("flag", match["before"])

    text = _SHAPE.sub(lambda m: cut((m.lastgroup or "secret").replace("_", "-")), text)
    text = _URL.sub(address, text)
    text = _BEARER.sub(lambda m: cut("bearer", m["before"]), text)
    text = _LOGIN.sub(lambda m: m[0] if _PLACEHOLDER.match(m["secret"]) else cut("login", m["before"]), text)
    text = _CLIENTS.sub(flag, text)
    text = _NAMED.sub(named, text)
    text = _FLAG.sub(flag, text)
    text = _RANDOM.sub(lambda m: cut("random") if _looks_random(m[0]) else m[0], text)
    return text, count


def redact_all(value: Any, key: Any = "") -> tuple[Any, int]:
    """The same for every string in plain data (dicts, lists, tuples), keys excepted; `key` is its name."""
    if isinstance(value, str):
        named = isinstance(key, str) and _KEY.fullmatch(_HUMP.sub("_", key))
        if named and re.search(r"\s", value):  # a header with its scheme: Token 9944b0
            clean, count = redact(f"{key}: {value}")
            return clean.removeprefix(f"{key}: "), count
        return ("[redacted:named]", 1) if named and _looks_secret(value) else redact(value)
    if isinstance(value, dict):
        parts = {name: redact_all(item, name) for name, item in value.items()}
        return {name: part for name, (part, _) in parts.items()}, sum(n for _, n in parts.values())
    if isinstance(value, (list, tuple)):
        names = [key, *(one if isinstance(one, str) and _ARGUMENT.fullmatch(one) else key for one in value)]
        client = any(isinstance(one, str) and _PROGRAM.fullmatch(one) for one in value)
        glued = [_GLUED_ARGUMENT.fullmatch(one) if client and isinstance(one, str) else None for one in value]
        items = [
            (f"{found['before']}[redacted:flag]", 1)
            if found and not _stands_in(found["secret"])
            else redact_all(item, name)
            for item, name, found in zip(value, names, glued, strict=False)
        ]
        return type(value)(part for part, _ in items), sum(n for _, n in items)
    return value, 0


def _stands_in(value: str) -> bool:
    """Whether a value is only the place of one."""
    return bool(_STAND_IN.fullmatch(value) or _PLACEHOLDER.search(value))


def entropy(text: str) -> float:
    """Bits a character, from the characters' own frequencies."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


def _looks_secret(value: str) -> bool:
    """Beside a telling name: anything with digits or marks among letters, or long enough to be no word."""
    if len(value) < 6 or _PLACEHOLDER.search(value):
        return False
    mixed = bool(re.search(r"[A-Za-z]", value)) and bool(re.search(r"[0-9!@#$%^&*+/=_-]", value))
    return (mixed or len(value) >= 16) and not re.match(r"[\w.]+[(\[]", value) and entropy(value) >= 2.0


def _looks_random(value: str) -> bool:
    """Without a name: upper, lower and digits in a long run, more bits each than hexadecimal can have."""
    kinds = (re.search(r"[A-Z]", value), re.search(r"[a-z]", value), re.search(r"[0-9]", value))
    longest = max(map(len, re.split(r"[/_-]", value)))  # words in a row, as in OWNER/MODEL-7B-Name, are short
    return all(kinds) and entropy(value) > 4.3 and longest >= 16
