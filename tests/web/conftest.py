"""A page on a real port, a store to look at, and a real browser."""

import http.client
import shutil
import threading
import time
from urllib.parse import urlencode, urlsplit

import pytest

pytest.importorskip(
    "starlette", reason="starlette is not installed; to run this: pip install 'rusty-r2[web]'"
)
pytest.importorskip("uvicorn", reason="uvicorn is not installed; to run this: pip install 'rusty-r2[web]'")

from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, Step
from rusty_r2.web.serve import Site, WebConfig


def make_trace(number=0, **given):
    """A run of our own protocol, one a minute."""
    steps = [
        Step(render(Cmd("pytest -q")), "1 failed", False),
        Step(render(Edit("total.py", f"def total(xs):\n    return sum(xs) + {number}\n")), "written"),
        Step(render(Msg(f"Done with number {number}."))),
    ]
    told = {
        "trace_id": f"trace-{number:05d}",
        "timestamp": f"2026-11-01T{number // 60 % 24:02d}:{number % 60:02d}:00.000+00:00",
        "user_query": f"Fix total.py please, number {number}",
        "steps": steps,
        "final_response": f"Done with number {number}.",
        "agent_name": "rusty",
        "model": "toy",
        "ended": "done",
    }
    return ExecutionTrace(**(told | given))


@pytest.fixture(scope="session")
def trace():
    return make_trace


@pytest.fixture
def store(tmp_path):
    with TraceStore(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture
def serve(tmp_path, store):
    """Start a page in a thread; it is stopped after the test."""
    started = []

    def start(**options):
        given = {"port": 0, "store": str(tmp_path / "t.db"), "runs": tmp_path / "runs", "folder": tmp_path}
        site = Site(WebConfig(**(given | options)))
        thread = threading.Thread(target=site.serve)
        thread.start()
        started.append((site, thread))
        while not site.server.started and thread.is_alive():
            time.sleep(0.01)
        return site

    yield start
    for site, thread in started:
        site.stop()
        thread.join(120)
        site.__exit__()


class Client:
    """Says exactly what it is told: no header is added that a test did not ask for."""

    def __init__(self, site):
        self.site = site
        self.host = urlsplit(site.url).netloc
        self.port = site.socket.getsockname()[1]

    def ask(self, method, path, body=None, **headers):
        said = {"Host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in said.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "Content-Length" not in said:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, fields, **headers):
        given = {"Origin": f"http://{self.host}", "Content-Type": "application/x-www-form-urlencoded"}
        form = {"key": self.site.keys.form} | fields
        body = urlencode({name: value for name, value in form.items() if value is not None}).encode()
        return self.ask("POST", path, body, **(given | headers))


@pytest.fixture
def client():
    return Client


@pytest.fixture(scope="module")
def chromium():
    """A real browser; closed with its module, because its event loop would be in the way of other tests."""
    api = pytest.importorskip("playwright.sync_api", reason="to run this: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium; to run this: apt-get install chromium")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """A page in the browser that notes what should never happen: dialogs, errors, requests to elsewhere."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.wrong = []
    page.on("dialog", lambda dialog: (page.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: page.wrong.append(f"error {error}"))
    page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: page.wrong.append(asked.url) if _elsewhere(asked.url) else None)
    yield page
    context.close()
    assert page.wrong == []


def _elsewhere(url):
    return urlsplit(url).scheme != "data" and urlsplit(url).hostname != "127.0.0.1"
