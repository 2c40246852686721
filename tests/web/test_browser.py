"""A person at the keyboard, in a real browser: no mouse is ever used."""

import json
import math

import pytest


@pytest.fixture
def labelling(serve, store, trace, tab):
    store.append_many(trace(number) for number in range(60))
    site = serve(who="ada")
    tab.goto(site.url + "/")
    tab.keyboard.press("2")
    tab.wait_for_selector("text=Fix total.py please, number 59")
    return tab


def press(tab, key, then):
    """One key, and the trace that must be there afterwards."""
    tab.keyboard.press(key)
    tab.wait_for_selector(f".request >> text='Fix total.py please, number {then}'")


def test_fifty_traces_by_keys_alone(labelling, store):
    for number in range(59, 9, -1):
        press(labelling, "y" if number % 3 else "n", number - 1)
    assert labelling.inner_text("[data-labelled]") == "50" and labelling.inner_text("[data-waiting]") == "10"
    assert store.count(labeled=True) == 50
    for number in range(59, 9, -1):
        (said,) = store.labels(f"trace-{number:05d}")
        assert (said["label"], said["who"]) == (bool(number % 3), "ada")
    assert labelling.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_skip_undo_and_note(labelling, store):
    press(labelling, "s", 58)
    press(labelling, "n", 57)
    labelling.keyboard.press("e")
    labelling.keyboard.type("yes: n is <b>no</b> key here")
    labelling.keyboard.press("Enter")
    assert store.count(labeled=True) == 1
    press(labelling, "y", 56)
    (said,) = store.labels("trace-00057")
    assert (said["label"], said["note"]) == (True, "yes: n is <b>no</b> key here")
    press(labelling, "u", 57)
    press(labelling, "u", 58)
    assert store.count(labeled=True) == 0
    press(labelling, "u", 59)
    assert labelling.locator("button[data-key=u]").is_disabled()
    press(labelling, "y", 58)
    assert store.get("trace-00059").label is True and store.count(labeled=True) == 1


def test_a_key_held_down_or_pressed_twice_labels_once(labelling, store):
    labelling.evaluate(
        """() => { for (let i = 0; i < 5; i++) document.body.dispatchEvent(
            new KeyboardEvent('keydown', {key: 'y', bubbles: true, repeat: i > 2})) }"""
    )
    labelling.wait_for_selector(".request >> text='Fix total.py please, number 58'")
    assert store.count(labeled=True) == 1


def test_a_letter_in_a_field_or_with_control_is_no_command(labelling, store):
    labelling.keyboard.press("w")
    labelling.keyboard.type("yny")
    labelling.keyboard.press("Escape")
    labelling.keyboard.press("Control+y")
    labelling.keyboard.press("q")
    assert store.count(labeled=True) == 0
    labelling.keyboard.press("w")
    labelling.keyboard.press("Control+a")
    labelling.keyboard.type("grace")
    labelling.keyboard.press("Enter")
    labelling.wait_for_selector(".who >> text='grace'")
    press(labelling, "y", 58)
    assert store.get("trace-00059").labeled_by == "grace"


def test_when_the_server_is_gone_the_page_says_so(labelling, store):
    labelling.context.set_offline(True)
    labelling.keyboard.press("y")
    labelling.wait_for_selector(".status >> text=Not kept")
    labelling.context.set_offline(False)
    labelling.wrong[:] = [said for said in labelling.wrong if "ERR_INTERNET_DISCONNECTED" not in said]
    assert store.count(labeled=True) == 0
    press(labelling, "y", 58)


def test_the_list_is_walked_and_searched_by_keys(serve, store, trace, tab):
    store.append_many(trace(number) for number in range(60))
    tab.goto(serve().url)
    for key in ("j", "j", "k", "j", "Enter"):
        tab.keyboard.press(key)
    tab.wait_for_selector(".request >> text='Fix total.py please, number 58'")
    tab.keyboard.press("y")
    tab.wait_for_selector("aside .mark.good")
    assert store.get("trace-00058").label is True
    tab.keyboard.press("1")
    tab.wait_for_selector("text=60 traces")
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("text=page 2 of 2")
    tab.keyboard.press("/")
    tab.keyboard.type("number 42")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("text=Clear")
    assert tab.locator(".rows a").count() == 1


def test_a_trace_is_read_at_a_glance(serve, store, trace, tab):
    parts = {"code_execution": 0.5, "efficiency": 1.0}
    history = [{"role": "user", "content": "before"}]
    store.append(trace(1, reward_score=0.75, reward_parts=parts, history=history))
    store.label("trace-00001", False, note="deleted the test", who="ada")
    tab.goto(serve().url + "/trace?id=trace-00001")
    kinds = tab.eval_on_selector_all(".reader > .part", "parts => parts.map(part => part.classList[1])")
    assert kinds == ["request", "command", "edit", "answer"]
    assert tab.inner_text(".command .came") == "1 failed" and tab.locator(".command.failed").count() == 1
    assert tab.eval_on_selector_all(".diff .added", "lines => lines.length") == 2
    added = tab.evaluate("getComputedStyle(document.querySelector('.diff .added')).backgroundColor")
    assert added not in ("rgba(0, 0, 0, 0)", tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    aside = tab.inner_text("aside")
    for told in ("0.75", "code execution", "0.50", "ada", "deleted the test", "toy"):
        assert told in aside
    assert not tab.locator(".before .part").is_visible()
    tab.keyboard.press("o")
    assert tab.locator(".before .part").is_visible()


def make_run(folder, ended, count, rate):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"lr": rate, "seed": 0}))
    (folder / "run.json").write_text(json.dumps({"ended": ended, "command": "rusty train ppo"}))
    lines = (
        {"step": n, "time": n, "reward/mean": math.log1p(n * rate), "loss/policy": 1 / (n + 1)}
        for n in range(count)
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves_are_seen_refresh_and_are_compared(serve, tmp_path, tab):
    make_run(tmp_path / "runs" / "one", "running", 30, 0.1)
    make_run(tmp_path / "runs" / "two", "done", 40, 0.2)
    site = serve()
    tab.goto(site.url + "/run?name=one")
    box = tab.locator(".curve polyline").first.bounding_box()
    assert tab.locator(".curve").count() == 2 and box["width"] > 200 and box["height"] > 50
    with open(tmp_path / "runs" / "one" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 30, "time": 30, "reward/mean": 77.25}) + "\n")
    tab.wait_for_selector(".curve figcaption >> text='77.25'")
    tab.keyboard.press("b")
    tab.wait_for_selector("text=Compare the two marked")
    names = tab.locator("th a").all_inner_texts()
    for key in ("j", "a", "j", "b", "c"):
        tab.keyboard.press(key)
    tab.wait_for_selector("text=Options that differ")
    assert tab.locator(".legend").all_inner_texts() == names and sorted(names) == ["one", "two"]
    assert tab.locator(".curve").count() == 2 and tab.locator(".curve").first.locator("polyline").count() == 2
    first, second = (
        tab.evaluate(f"getComputedStyle(document.querySelector('.curve .s{n} polyline')).stroke")
        for n in (0, 1)
    )
    assert first != second and "rgb" in first


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(serve, store, trace, tmp_path, tab, width):
    store.append(trace(1, user_query="long" * 500, model="m" * 300, agent_name="a" * 300))
    store.label("trace-00001", True, who="w" * 60)
    make_run(tmp_path / "runs" / ("r" * 120), "done", 5, 0.1)
    site = serve()
    tab.set_viewport_size({"width": width, "height": 844})
    for path in (
        "/traces",
        "/trace?id=trace-00001",
        "/label",
        "/agreement",
        "/runs",
        f"/run?name={'r' * 120}",
        "/shelf",
    ):
        tab.goto(site.url + path)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_dark_and_light_follow_the_system(serve, tab):
    site = serve()
    seen = set()
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        tab.goto(site.url + "/traces")
        seen.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 2


def test_without_scripts_the_forms_still_work(chromium, serve, store, trace):
    store.append_many(trace(number) for number in range(2))
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(serve().url + "/label")
    page.click("button.good")
    page.wait_for_selector("text=number 0")
    assert store.get("trace-00001").label is True
    context.close()


def test_a_page_elsewhere_cannot_label(chromium, serve, store, trace):
    """A form of another page, in a browser with the cookie and somehow even the form's key, is refused."""
    store.append(trace(1))
    site = serve(token=True)
    form = f"""<form method=post action="{site.url}/label?id=trace-00001">
        <input name=key value="{site.keys.form}">
        <button name=said value=good>win</button></form>"""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(site.address)
    page.wait_for_selector("text=1 trace")
    assert "token" not in page.url and page.evaluate("document.cookie") == ""
    for elsewhere in ("http://127.0.0.1:1/evil", "http://evil.example/"):  # the first one is the same site
        context.route(elsewhere, lambda asked: asked.fulfill(body=form, content_type="text/html"))
        page.goto(elsewhere)
        page.click("button")
        page.wait_for_selector("text=did not come from a page of ours")
    assert store.labels("trace-00001") == []
    context.close()
