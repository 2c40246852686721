"""Words of others stay words: hostile text in every field of everything, and a browser to try it in."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

import rusty_r2.web
from rusty_r2.config import home
from rusty_r2.rewards.labeler import WHO as LEARNED
from rusty_r2.trace import ExecutionTrace, ReasoningStep, Step, ToolCallTrace

HERE = Path(rusty_r2.web.__file__).parent
PAYLOADS = {
    "script": "<script>window.owned=1;alert('script')</script>",
    "onerror": "<img src=x onerror=\"window.owned=1;alert('img')\">",
    "svg": "<svg onload=\"window.owned=1;alert('svg')\"><script>alert(1)</script></svg>",
    "attribute": '"\' autofocus onfocus=alert(1) x="',
    "link": "javascript:window.owned=1;alert('link')",
    "close": "</pre></title></textarea></script><script>window.owned=1;alert('close')</script>",
    "template": "{{ 7*191 }}{% raw %}${7*191}",
    "frame": "<iframe src=http://evil.example/></iframe><link rel=stylesheet href=//evil.example/x.css>",
    "style": "<style>*{background:url(http://evil.example/leak)}</style>",
    "form": "<form action=http://evil.example/><button data-key=y>",
    "comment": "<!--<base href=http://evil.example/>",
    "hidden": "safe\u202etxt.exe\u2066\u200b\x1b]0;title\x07\x1b[2Jgone\r\x00\x9b31m\ud83d",
}


_OUR_TAGS = """
html head meta title link script body header a nav kbd main p form div input datalist option select label span
button ol li time section h1 h2 h3 article details summary pre aside dl dt dd q strong small code table thead
tbody tr th td svg rect line text g polygon polyline circle figure figcaption ul"""
_OUR_ATTRIBUTES = """
lang charset name content rel href src defer class aria-label data-key aria-current title role aria-live
method action type value placeholder list autocomplete id selected data-stop tabindex data-swap maxlength
disabled viewbox preserveaspectratio aria-hidden width height x y x1 x2 y1 y2 cx cy r points checked
data-stamp data-live open data-labelled data-waiting"""
TAGS, ATTRIBUTES = set(_OUR_TAGS.split()), set(_OUR_ATTRIBUTES.split())


def whole(text):
    """Names in a database have no half characters; everything else may."""
    return text.replace("\ud83d", "")


def hostile(text, number):
    """A trace with this text wherever a text may stand."""
    clean = text.replace("\0", "")
    edit = json.dumps({"action": "EDIT", "path": f"a/{clean}", "content": f"{text}\n+{text}\n-{text}"})
    command = json.dumps({"action": "CMD", "command": f"echo {clean}"})
    return ExecutionTrace(
        trace_id=f"{number}{whole(text)}"[:60],
        session_id=text,
        timestamp=f"2026-11-01T00:{number:02d}:00.000+00:00",
        user_query=text * 2,
        tool_calls=[
            ToolCallTrace(text, {text: text}, text, False, 1.0, text, text),
            ToolCallTrace(text, {"path": text, "old_string": text, "new_string": 2 * text}, text, True, 0.0),
            ToolCallTrace(text, {"command": [text, text]}, [text], True, 0.0),
            ToolCallTrace(text, {"patch": f"+{text}\n-{text}\n@@ {text}"}, None, True, 0.0),
        ],
        reasoning_steps=[ReasoningStep(text, text, 0.5, [text], [text])],
        tasks_created=[{text: text}],
        tasks_failed=[{text: text}],
        final_response=text,
        review_notes=text,
        agent_name=text,
        system_prompt=text,
        history=[{"role": text, "content": text}, {"role": "user", "content": [{"text": text}]}],
        steps=[Step(text, text, False), Step(edit, text), Step(command, text)],
        ended=text,
        task_name=text,
        model=text,
        model_digest=text,
        sampling={text: text},
        sandbox_level=text,
        reward_parts={text: 0.5},
        reward_score=0.5,
        labeled_by=whole(text),
        label=True,
        extra={text: text},
    )  # fmt: skip


@pytest.fixture(params=["each"])
def poisoned(request, tmp_path, store, serve):
    """A store, runs and datasets in which everything that can be named is named by an attacker."""
    texts = list(PAYLOADS.values()) if request.param == "each" else [" ".join(PAYLOADS.values())]
    for number, text in enumerate(texts):
        made = hostile(text, number)
        store.append(made)
        store.label(made.trace_id, True, note=whole(text), who=whole(text))
        store.label(made.trace_id, False, note=whole(text), who=LEARNED, manual=False)
        store.append(hostile(text, 50 + number))
        store.label(f"{50 + number}{whole(text)}"[:60], None, who=whole(text))
        name = re.sub(r"[/\0\ud83d]", "_", text)[:80]
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        lines = [{"step": n, "time": n, text: n, "loss/x": n, "words": text} for n in range(3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "config.json").write_text(json.dumps({text: text, "data": text, "init": [text]}))
        (run / "run.json").write_text(
            json.dumps({"command": text, "ended": text, "started": text, text: {text: text}})
        )
        (run / "step_000001").mkdir()
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"prompt": text, "completion": text, "label": True}) + "\n"
        )
        corpus = tmp_path / f"corpus {name}"
        corpus.mkdir()
        sources = [{"source": text, "licence": text}]
        (corpus / "manifest.json").write_text(
            json.dumps({"splits": {text: {"shards": []}}, "sources": sources, "tokenizer": text})
        )
        version = home() / "models" / f"agent{number}" / "v0001"
        version.mkdir(parents=True)
        record = {
            "name": text,
            "number": 1,
            "kind": text,
            "sha256": text,
            "size": 1,
            "created": text,
            "file": text,
        }
        gate = {"passed": False, "sha256": text, "reasons": [text]}
        record |= {
            "lineage": {text: text, "run": text, "traces": {text: text}},
            "scores": {text: text},
            "gate": gate,
        }
        (version / "record.json").write_text(json.dumps(record))
        (version.parent / "deployed.json").write_text(json.dumps({text: text}))
    return serve(who=PAYLOADS["script"])


def everything(site):
    """The address of every page there is something on."""
    runs = [run.name for run in site.rooms.runs.all()]
    yield from ("/traces", "/label", "/label?queue=second", "/agreement", "/runs", "/shelf")
    for row in site.store.listing(limit=None):
        yield "/trace?id=" + quote(row["trace_id"], errors="replace")
    for name in runs:
        yield f"/run?name={quote(name)}"
        yield f"/compare?a={quote(name)}&b={quote(runs[0])}"
    for text in ("".join(PAYLOADS.values())[:2000], *PAYLOADS.values())[: 99 if len(runs) > 1 else 1]:
        said = quote(text[:400], errors="replace")
        yield f"/traces?text={said}&agent={said}&model={said}&since={said}&label={said}"
        yield f"/trace?id=no{said}"
        yield f"/run?name=no{said}"


def test_nothing_that_was_said_becomes_markup(poisoned, client):
    page = client(poisoned)
    for path in everything(poisoned):
        status, _, body = page.get(path)
        assert status in (200, 404), path
        seen = Seen()
        seen.feed(body)
        assert seen.tags <= TAGS and seen.attributes <= ATTRIBUTES, (path, seen.tags, seen.attributes)
        assert all(link.startswith(("/", "data:image/svg+xml,")) for link in seen.links), path
        assert not any(link.startswith("//") for link in seen.links), path
        assert "1337" not in body, path


class Seen(HTMLParser):
    """Every element and attribute of a page, as a browser would find them."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.links = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name in ("href", "src", "action")]

    def handle_comment(self, data):
        self.tags.add(f"<!--{data}")


def test_what_is_invisible_is_spelt_out(poisoned, client):
    page = client(poisoned)
    seen = "".join(page.get(path)[2] for path in everything(poisoned))
    for hidden in "\u202e\u2066\u200b\x1b\x07\x00\x9b\r":
        assert hidden not in seen
    for told in (r"\u202e", r"\u2066", r"\u200b", r"\x1b[2J", r"\x07", r"\x00", r"\u009b", r"\ud83d"):
        assert told in seen, told


@pytest.mark.parametrize("path", sorted((HERE / "templates").glob("*.jinja")), ids=lambda p: p.name)
def test_no_template_switches_escaping_off(path):
    text = path.read_text()
    assert "safe" not in re.findall(r"\|\s*(\w+)", text) and "autoescape" not in text
    assert not re.search(r"\s(on[a-z]+|style)=", text) and "<style" not in text
    assert re.findall(r"<script(?! src=\"/static/page\.js)", text) == []
    assert not re.search(r"=\{\{", text), "an attribute without quotes"


def test_no_code_makes_markup_of_words():
    for path in HERE.glob("*.py"):
        assert not re.search(r"Markup\(|\.unescape|autoescape=False", path.read_text()), path
    script = (HERE / "static" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|document\.write|Function\(", script)


@pytest.mark.parametrize("poisoned", ["together"], indirect=True)
def test_a_browser_runs_none_of_it(poisoned, tab):
    for path in everything(poisoned):
        tab.goto(poisoned.url + path)
        assert tab.evaluate("window.owned") is None, path
        foreign = "script, img, iframe, style, base, object, [onload], [onfocus], [onerror]"
        assert tab.evaluate(f"document.querySelector('main').querySelectorAll('{foreign}').length") == 0, path
        links = tab.evaluate(
            "[...document.querySelectorAll('a[href], form')].map(one => (one.href || one.action))"
        )
        assert all(isinstance(link, str) and link.startswith(poisoned.url) for link in links), path
        tab.wrong[:] = [said for said in tab.wrong if "404 (Not Found)" not in said]
    tab.goto(poisoned.url + "/label")
    tab.keyboard.press("o")
    assert tab.wrong == []
