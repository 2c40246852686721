# SPDX-License-Identifier: AGPL-3.0-or-later
"""Secrets do not enter a trace: known shapes and high-entropy values beside a telling name are cut out.

`redact` returns the text with each secret replaced by `[redacted:KIND]` and how many there were. What is
looked for is declared once: `_SHAPES` are keys known by their letters, `_PLACES` say where a program or a
file has its place for a password, `_RULES` list every way and the words without which it need not be tried.
Hashes, ids and ordinary code survive: a value without a known shape must stand beside a word such
as password or token, or look random in a way that hexadecimal never does. A plain word is cut only as the
value of a password, and not where code would have a name or a type. In plain data (`redact_all`)
the word may be the value's key, or the flag before it in a list. Inside JSON inside a text (the replies of
our own protocol) quotes stand behind backslashes; what is cut leaves that JSON whole.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHORTEST = 10
"""characters; a shorter string holds no secret with the word that gives it away"""

_SHAPES = {
    "private-key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----"
    r"(?:.{0,8000}?-----END [A-Z ]{0,40}KEY[A-Z ]{0,9}-----|(?:[^\"'\\]|\\+[nr])*)",
    "aws-key": r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",
    "github-token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{22,255})",
    "gitlab-token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "api-key": r"\bsk-(?:ant-|proj-|or-|live-|test-)?[A-Za-z0-9_-]{16,}",
    "service-key": r"\b(?:gsk_|xai-|r8_|nvapi-|hvs\.|dop_v1_|shpat_)[A-Za-z0-9_-]{30,}",
    "stripe-key": r"\b(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,})",
    "slack-token": r"\b(?:xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{30,})",
    "slack-hook": r"(?<=slack\.com/services/)T[A-Z0-9]{6,12}/B[A-Za-z0-9/]{20,}",
    "google-key": r"\b(?:AIza[0-9A-Za-z_-]{35}|GOCSPX-[A-Za-z0-9_-]{24,})",
    "hub-token": r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "registry-token": r"\b(?:pypi-[A-Za-z0-9_-]{40,}|npm_[A-Za-z0-9]{36}|dckr_pat_[A-Za-z0-9_-]{20,})",
    "mail-key": r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}",
    "oauth-token": r"\bya29\.[A-Za-z0-9_-]{20,}",
    "age-key": r"\bAGE-SECRET-KEY-1[0-9A-Z]{40,}",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
}
_STARTS = (
    r"-----BEGIN|A[GIKRS]|GOCSPX|SG\.|T[A-Z0-9]{6,12}/B|api_org|d(?:ckr|op_)|eyJ|g[hil]|gsk_|hf_|hvs\.|n(?:pm_|vapi)"
    r"|pypi|r8_|[rs]k[-_]|shpat|whsec|x(?:ai-|app|ox)|ya29"
)
"""of all shapes: where none of these stands, none is tried, which is ten times as fast"""
_ANY = "|".join(f"(?P<{kind.replace('-', '_')}>{shape})" for kind, shape in _SHAPES.items())
_SHAPE = re.compile(f"(?={_STARTS})(?:{_ANY})", re.S)

_QUOTE = r"""(?P<quote>\\{0,3}["'`])?"""
_INSIDE = r"""(?:(?!(?P=quote))(?:[^\n\\]|\\[^nrt"'])){1,512}"""
"""what the quotes hold, blanks too; a backslash stays with what it escapes, so that JSON stays whole"""
_QUOTED = rf"(?(quote){_INSIDE}(?=(?P=quote))|(?!))"
_URL = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.-]{1,20}://(?P<user>[^\s:/@'\"\[]{0,128}:)?)"
    r"(?P<secret>(?(user)(?:[^\s/'\"]{1,256}|[^\s@'\"]{1,256})|(?<=https://)\w{20,256})(?=@))",
    re.I,
)
_BEARER = re.compile(
    r"(?P<before>\b(?:(?P<header>authorization\\{0,3}[\"']?\s*:\s*\\{0,3}[\"']?(?:[a-z][\w-]{1,20}\s+)?)"
    r"|(?:bearer|basic)\s+))"
    r"(?=[A-Za-z+/._~-]*(?-i:\d|=|[a-z][A-Z]))"  # not a word, as in "basic simplification"
    r"(?P<secret>[A-Za-z0-9+/._~-]{6}(?(header)|[A-Za-z0-9+/._~-]{6})[A-Za-z0-9+/._~-]*=*)(?![\w=]|\"\w)",
    re.I,
)
_COOKIE = re.compile(
    r"""(?P<before>cookie\\{0,3}["']?\s?[:=]\s?\\{0,3}["']?[\w.-]{1,64}=)(?P<secret>[^\s"'`\\;=][^\s"'`\\;]*
        (?:;[ ]?(?!path=|expires=|domain=|max-age=|samesite=)[\w.-]{1,64}=[^\s"'`\\;]*)*)""",
    re.I | re.X,
)
"""every value of the header; the attributes of Set-Cookie stay"""
_STRONG = r"passw(?:or)?d(?!s)|passphrase|client[_-]?secret"
"""names whose value is a secret whatever it looks like"""
_TELLING = (
    rf"(?:{_STRONG}|secret|token(?!i[sz]|s\b|s_)|(?:api|access|account)[_-]?key|credential"
    r"|(?-i:_PASS\b|_PWD\b|(?:PRIVATE|ENCRYPTION|SIGNING|MASTER)_KEY\b))"
)
_ABOUT = (
    r"[\w-]{0,30}(?:type|hint|ur[il]|endpoint|name|field|file|path|dir|header|placement|prompt|policy"
    r"|length|level|count|limit|size|timeout|ttl)\b"
)
"""token_type and password_file are no token and no password"""
_NAMED = re.compile(
    rf"""(?P<before>(?P<name>{_TELLING})(?!{_ABOUT})[\w-]{{0,40}}\\{{0,3}}["']?[ \t]*
            (?P<sign>:=|=>|(?::[ \t]*\w{{1,20}}[ \t]*)?=(?![=~])|:|[ ](?:--?|is:?)[ ])[ \t]*{_QUOTE})
        (?P<secret>{_QUOTED}|(?:[^\s"'`,;)}}\]\\]|\\(?!["'nrt\\])){{3,512}})""",
    re.I | re.X,
)
_VARIABLE = re.compile(r"""(?P<name>[A-Z_]+)=\\{0,3}["']?""")
"""of a shell or an .env file: its value is a value, never the name of one"""
_KEY = re.compile(rf"(?:.*[\W_])?(?:{_TELLING}(?!{_ABOUT})|authorization|cookie)(?:[\W_]\w*)?", re.I | re.S)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARGUMENT = re.compile(
    r"--?(?!no-|ask-)(?:[a-z]+-){0,3}(?:pass|password|passwd|passphrase|token|api-key|secret)"
)
_FLAG = re.compile(
    rf"""(?P<before>(?:^|\s){_ARGUMENT.pattern}[=\ ]{_QUOTE})
        (?P<secret>(?!-)(?:{_QUOTED}|[^\s"'\\]{{4,256}}))""",
    re.X,
)
_RANDOM = re.compile(
    r"(?P<before>(?<![A-Za-z0-9+/_=.-]))(?P<secret>[A-Za-z0-9+/_-]{32,512}={0,2}(?![A-Za-z0-9+/_=-]))"
)
_CLIENT = r"(?:mysql\w*|mariadb[\w-]*|mydumper)"
"""programs that take a password glued to `-p`, also behind flags that have no value"""
_GLUED = r"(?:-[ABCEGHLNXbfinqrstvw]{0,6}p|--password=)"
_REST = r"\s(?:(?:[^\n|;&\\]|\\(?!n)){0,400}?\s)?"
_GAP = r"(?:\s|\\{1,3}n){1,20}"
_LITERAL = r"\s(?=\\{0,3}')"
_PLACES = {
    **dict.fromkeys(("mysql", "mariadb", "mydumper"), rf"[\w-]*{_REST}{_GLUED}"),
    **dict.fromkeys(("docker", "podman", "registry"), rf"\slogin{_REST}-p\s?"),
    "curl": rf"{_REST}(?:-[a-zA-Z]{{0,8}}[uUb]\s?|--(?:proxy-)?user[=\ ]|--cookie[=\ ])(?P<pair>)",
    "sshpass": r"\s+-p\s?",
    "redis-cli": rf"{_REST}-a\s",
    "mongo": rf"[a-z]*{_REST}-p\s",
    "ldap": rf"[a-z]+{_REST}-w\s",
    "zip": rf"{_REST}-P\s",
    "7z": rf"{_REST}-p",
    "-pass": r"(?:in|out)?\s+pass:",
    "echo": r"\s(?:-n\s)?(?=[^\n|]{1,256}\|\s?(?:sudo\s-S|(?:sudo\s)?chpasswd|[^\n|]{1,99}--password-stdin))",
    "machine": rf"{_GAP}\S{{1,100}}?{_GAP}login{_GAP}\S{{1,64}}?{_GAP}password{_GAP}",
    "default": rf"{_GAP}login{_GAP}\S{{1,64}}?{_GAP}password{_GAP}",
    "requirepass": r"\s",
    "_auth": r"=(?<![\w.]_auth=)",
    "assword": r">(?=[^\s<>]+</)",
    **dict.fromkeys((r"IDENTIFIED\sBY", r"WITH\sPASSWORD", r"with\spassword"), _LITERAL),
}
"""what stands before a password where a program, a file or SQL has its place for one; `pair`: a name too"""
_PLACE = re.compile(
    rf"""(?P<before>(?:{"|".join(map("".join, _PLACES.items()))}){_QUOTE}(?(pair)[^\s:="'\\]{{1,64}}[:=]))
        (?P<secret>(?(quote){_INSIDE}|(?:[^\s"'\\;|&<>)]|\\(?!["'nrt\\])){{1,256}}))""",
    re.X,
)
_PROGRAM = re.compile(rf"(?:.*/)?{_CLIENT}", re.S)
_GLUED_ARGUMENT = re.compile(rf"(?P<before>{_GLUED})(?P<secret>.+)", re.S)
_STAND_IN = re.compile(r"[A-Z_]+\d?|[\d.]*:?\d+:\d+(?:/\w+)?")  # PASSWORD, or a container's port 3306:3306
_PLACEHOLDER = re.compile(
    r"^[\[<{$(%]|[$#]\{|\$\(|\.\.\.|\.\*|x{3,}|\*{3}|your|example|changeme"
    r"|^/(?:etc|home|mnt|opt|root|run|srv|tmp|usr|var)/|^(?:none|null|true|false|os\.|self\.|get)|^(?:password|passwd|token|secret)$",
    re.I,
)
_ORDINARY = re.compile(
    r"(?:str|string|bytes|bytearray|text|char|varchar|int|integer|number|bool|boolean|any|object|optional|required"
    r"|missing|empty|unset|hidden|invalid|wrong|incorrect|expired|needed|options?|flags?|arguments?|parameters?"
    r"|and|the|from|with|instead|when|will|must|should|authentication|authorization|auth|protected|prompt|files|compat)\b.*"
    rf"|[A-Z][\w']*\s.*|.*\s(?:is|the|your|must|for|not|to|of|{_STRONG})\b.*",
    re.S,
)
"""types, and words that speak of a password, where the password itself would stand"""
_CALL = re.compile(r"[\w.]+[(\[{]")
_NAME = re.compile(rf"(?=\w*\.|\w*{_TELLING})[A-Za-z_]+(?:\.[A-Za-z_]+)*", re.I)
_LINE = re.compile(r"""(?:.*\n|.*\\n|.*["'])?(?P<indent>\s*)(?:export |- )?[\w.-]*""", re.S)
_CHAIN = re.compile(r"""(?:.*[^\s,(]\s|.*[;&?"'])[\w.]*""", re.S)
_LAST = re.compile(r"""\s*(?:$|[#"'])|\s*\n|\\+[nr"']""")


@dataclass(frozen=True)
class Rule:
    """One way a secret stands in a text: what comes before it is kept, the secret becomes its kind."""

    kind: str
    """what is left in its place: [redacted:KIND]"""
    pattern: re.Pattern[str]
    """with the groups `before` and `secret`"""
    hints: tuple[str, ...]
    """in small letters; where none of them stands in a text the pattern is not tried"""
    holds: Callable[[re.Match[str]], bool]
    """whether what the pattern found is a secret"""

    def cut(self, text: str) -> tuple[str, int]:
        """`text` without what this rule finds, and how much that was."""
        count = 0

        def one(match: re.Match[str]) -> str:
            nonlocal count
            if not self.holds(match):
                return match[0]
            count += 1
            return f"{match['before']}[redacted:{self.kind}]"

        return self.pattern.sub(one, text), count


def _given(match: re.Match[str]) -> bool:
    return not _PLACEHOLDER.match(match["secret"])


def _address(match: re.Match[str]) -> bool:
    return _given(match) if match["user"] else _looks_secret(match["secret"])


def _placed(match: re.Match[str]) -> bool:
    return not _stands_in(match["secret"])


def _argument(match: re.Match[str]) -> bool:
    value = match["secret"]
    return (
        _is_password(value) and value.replace("_", "-") not in match["before"]
    )  # --access-token access_token


def _named(match: re.Match[str]) -> bool:
    name, value = _VARIABLE.fullmatch(match["before"]), match["secret"]
    if name and "." not in value and value.upper() != name["name"]:
        return not _stands_in(value)
    if (not match["quote"] and _NAME.fullmatch(value)) or match["before"].endswith(":`"):
        return False  # self.token = access.token, or :token:`name` of a document
    strong, spoken = re.match(_STRONG, match["name"], re.I), "is" in match["sign"]
    if strong and (match["quote"] or (not spoken and _is_value(match))) and _is_password(value):
        return True
    if spoken and not (strong and re.fullmatch(r"\w*\d\w*", value)):  # the password is case-sensitive
        return False
    return not re.search(r"\s", value) and _looks_secret(value)


def _is_value(match: re.Match[str]) -> bool:
    """Whether a bare word is a value: in a file of settings, a query or a chain of a=b, but not in code."""
    before = match.string[max(0, match.start() - 200) : match.start()]
    value, after = match["secret"], match.string[match.end() : match.end() + 5]
    line = _LINE.fullmatch(before)
    if match["sign"] == ":":
        return bool(line and match["before"][-1:].isspace() and _LAST.match(after)) and not value[0].isupper()
    if line and not line["indent"]:
        return bool(_LAST.match(after))
    glued = match["before"][-2:-1].isalnum()
    return glued and bool(_CHAIN.fullmatch(before)) and after[:1] not in tuple(",)(")


_RULES = (
    Rule("url", _URL, ("://",), _address),
    Rule("bearer", _BEARER, ("authorization", "bearer", "basic"), _given),
    Rule("cookie", _COOKIE, ("cookie",), _given),
    Rule("login", _PLACE, ("",), _placed),
    Rule("named", _NAMED, ("pass", "secret", "token", "key", "credential", "_pwd"), _named),
    Rule("flag", _FLAG, ("-pass", "-token", "-secret", "-api-key"), _argument),
    Rule("random", _RANDOM, ("",), lambda match: _looks_random(match["secret"])),
)


def redact(text: str) -> tuple[str, int]:
    """`text` without its secrets, and how many were cut."""
    if len(text) < SHORTEST:
        return text, 0
    count = 0

    def shape(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"[redacted:{(match.lastgroup or 'secret').replace('_', '-')}]"

    small = text.lower()
    text = _SHAPE.sub(shape, text)
    for rule in _RULES:
        if any(hint in small for hint in rule.hints):
            text, cut = rule.cut(text)
            count += cut
    return text, count


def redact_all(value: Any, key: Any = "") -> tuple[Any, int]:
    """The same for every string in plain data (dicts, lists, tuples), keys excepted; `key` is its name."""
    if isinstance(value, str):
        return _redact_value(value, key if isinstance(key, str) else "")
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


def _redact_value(value: str, key: str) -> tuple[str, int]:
    name = _HUMP.sub("_", key)
    if not _KEY.fullmatch(name) or (name.startswith("-") and value.startswith("-")):  # --password --user bob
        return redact(value)
    if re.search(rf"{_STRONG}|^-", name, re.I) and _is_password(value):
        return "[redacted:named]", 1
    if re.search(r"\s", value) or "cookie" in name.lower():  # a header with its scheme: Token 9944b0
        clean, count = redact(f"{key}: {value}")
        return clean.removeprefix(f"{key}: "), count
    return ("[redacted:named]", 1) if _looks_secret(value) else redact(value)


def _is_password(value: str) -> bool:
    """In the place of a password: anything that is neither a stand-in nor speaks of one."""
    return len(value) > 2 and not (_stands_in(value) or _CALL.match(value) or _ORDINARY.fullmatch(value))


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
    return (mixed or len(value) >= 16) and not _CALL.match(value) and entropy(value) >= 2.0


def _looks_random(value: str) -> bool:
    """Without a name: upper, lower and digits in a long run, more bits each than hexadecimal can have."""
    kinds = (re.search(r"[A-Z]", value), re.search(r"[a-z]", value), re.search(r"[0-9]", value))
    longest = max(map(len, re.split(r"[/_-]", value)))  # words in a row, as in OWNER/MODEL-7B-Name, are short
    return all(kinds) and entropy(value) > 4.3 and longest >= 16
