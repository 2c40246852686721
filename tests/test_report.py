"""The report of a round: made from its folder alone, safe to open, and right in a real browser."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rusty_r2 import files
from rusty_r2.loop.charts import curve, histogram, number
from rusty_r2.loop.report import write_report
from rusty_r2.loop.stages import Made, Stages

EVIL = '<script>document.title="owned"</script><img src=x onerror=\'document.title="owned"\'>'
RATE = {"passed": 21, "total": 32, "low": 0.483, "high": 0.796}
LOST = {"passed": 2, "total": 32, "low": 0.017, "high": 0.2}
FACTS = {
    "collect": {
        "traces": 80, "from": "the store", "labels": {"good": 40, "bad": 40},
        "no traces": [f"t.jsonl:3: {EVIL}"],
    },
    "reward": {
        "judged": 80, "mean": 0.71, "parts": {"format": 0.9}, "by": {"person": 80},
        "refused": {"deletes /": 1}, "scores": [0.1, 0.5, 0.9, 0.95, 1.0],
    },
    "rows": {
        "rows": 72, "held out": 8, "counts": {"positive": 36}, "left out": {"near duplicate": 5},
        "notes": [EVIL],
    },
    "train": {"ended": "done", "before_after": {
        "rows": 8, "sure": True,
        "margin": {"before": [0.1, 0.0, 0.2], "after": [1.4, 1.0, 1.9], "change": [1.3, 0.9, 1.8]},
    }},
    "merge": {"size": 538},
    "export": {"quantization": "Q8_0", "size": 144_800_000, "sha256": "ab" * 32},
    "gate": {
        "passed": True, "against": "agent@1",
        "findings": [{"name": "tokens", "passed": True, "said": "113 strings equal"},
                     {"name": "predictions", "passed": False, "said": EVIL}],
        "measured": [
            {"name": "questions with known answers", "old": RATE, "new": LOST, "verdict": "worse",
             "samples": [{"asked": "What barks?", "old": "A dog.", "new": EVIL}]},
            {"name": "held-out tasks", "old": LOST, "new": RATE, "verdict": "better", "samples": []},
        ],
    },
    "promote": {"promoted": True, "label": "agent@2", "reasons": [], "before": "agent@1", "version": 2},
    "deploy": {"deployed": "agent"},
}  # fmt: skip


def make_round(folder: Path, **changed) -> Path:
    stages = Stages(folder)
    files.write(folder / "config.json", json.dumps({"name": "agent", "base": "smollm2", "method": "kto"}))

    def work(name):
        def inside(place):
            if name != "train":
                return Made({**FACTS[name], **changed.get(name, {})})
            run = place / "run"
            lines = [
                {"step": s, "loss/train": 1 / s, "reward/margins": s / 10, "lr": 1e-4, "odd": None}
                for s in range(1, 20)
            ]
            files.write(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            return Made(FACTS[name], (run,))

        return inside

    for name in FACTS:
        stages.run(name, {}, work(name))
    return folder


class Page(HTMLParser):
    """What is in the page: its tags, and whether each is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.wrong = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_whole_needs_nothing_and_escapes_everything(tmp_path):
    text = write_report(make_round(tmp_path / "round-001")).read_text()
    page = Page(text)
    assert not page.wrong and not page.open
    assert not any(tag in ("script", "img", "link", "iframe") for tag, _ in page.tags)
    assert not any(
        name.startswith("on") or name in ("src", "href") for _, attrs in page.tags for name in attrs
    )
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert text.count("<figure>") == 4, "three curves and a histogram"


def test_it_says_what_happened(tmp_path):
    text = write_report(make_round(tmp_path / "round-001")).read_text()
    for part in (
        "agent@2: promoted",
        "in place of agent@1",
        "65.6%",
        "near duplicate",
        "deletes /",
        "Q8_0",
        "1.4",
    ):
        assert part in text, part
    refused = {
        "promoted": False,
        "label": "agent@3",
        "reasons": ["questions: 2 of 32 where 21"],
        "before": "",
    }
    other = make_round(tmp_path / "round-002", promote=refused)
    text = write_report(other, in_use="agent@2").read_text()
    for part in ("agent@3: refused", "questions: 2 of 32 where 21", "agent@2 stays in use"):
        assert part in text, part


def test_a_round_that_was_cut_short_has_a_report_too(tmp_path):
    folder = make_round(tmp_path / "round-001")
    for path in sorted(folder.glob("0[4-9]-*")):
        shutil.rmtree(path)
    assert "Nothing was measured" in write_report(folder).read_text()
    assert write_report(tmp_path / "empty").exists()


def test_pictures_bear_any_numbers():
    assert "polyline" in curve("flat", [(1, 2.0), (2, 2.0)]) and "NaN" not in curve(
        "one", [(1, 0.0), (1, 0.0)]
    )
    assert histogram("h", [0.0, 1.0, 1.2, -3.0]).count("<rect") == 10
    assert [number(x) for x in (3.0, 0.12345, float("nan"), 1.35e8, 2e-5)] == [
        "3",
        "0.123",
        "–",
        "135.0 M",
        "2.0e-05",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_real_browser(tmp_path, scheme):
    sync = pytest.importorskip("playwright.sync_api", reason="pip install 'rusty-r2[dev]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed; to run this: apt-get install chromium")
    page_file = write_report(make_round(tmp_path / "round-001"))
    with sync.sync_playwright() as driver:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=chromium, args=flags)
        try:
            tab = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
            problems = []
            tab.on("console", lambda said: problems.append(said.text))
            tab.on("pageerror", lambda error: problems.append(str(error)))
            tab.on(
                "request",
                lambda asked: problems.append(asked.url) if "report.html" not in asked.url else None,
            )
            tab.goto(page_file.as_uri())
            assert tab.title() == "agent@2: promoted" and not problems
            wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, "nothing sticks out on a telephone"
            assert tab.locator("figure svg polyline").count() == 3
            assert all(box.bounding_box()["height"] > 40 for box in tab.locator("figure svg").all())
            ink, paper = tab.evaluate(
                "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
            )
            assert ink != paper
            tab.set_viewport_size({"width": 1200, "height": 900})
            tab.screenshot(path=str(tmp_path / f"{scheme}.png"), full_page=True)
            assert (tmp_path / f"{scheme}.png").stat().st_size > 20_000
        finally:
            browser.close()
