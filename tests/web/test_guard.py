"""The doorkeeper: every header, every refusal, on a real port."""

import pytest
from starlette.datastructures import Headers

from rusty_r2.web.guard import HEADERS, LARGEST, POLICY, Guard, Keys, host_name, is_loopback, read_form

PAGES = (
    "/traces",
    "/label",
    "/agreement",
    "/runs",
    "/shelf",
    "/static/page.css",
    "/static/page.js",
    "/nothing",
)


def passed(said):
    return said[0]


@pytest.fixture
def page(serve, client, store, trace):
    store.append(trace(1))
    return client(serve())


def test_every_answer_carries_the_policy(page):
    for path in (*PAGES, "/trace?id=trace-00001"):
        status, headers, _ = page.get(path)
        assert status == (404 if path == "/nothing" else 200), path
        for name, value in HEADERS.items():
            if not (name == "cache-control" and path.startswith("/static/")):
                assert headers.get_all(name) == [value], (path, name)
        assert "server" not in headers
    for word in ("unsafe", "http:", "https:", "*"):
        assert word not in POLICY


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "foo.localhost",
        "",
        None,
        "[::1].evil.example",
        "127.0.0.1:80@evil.example",
    ],
)
def test_a_foreign_host_name_is_refused(page, host):
    status, headers, body = page.get("/traces", Host=host)
    assert status in (400, 421) and "trace" not in body.lower()
    assert status == 400 or headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]:1", "LOCALHOST"])
def test_names_of_this_machine_are_known(page, host):
    assert passed(page.get("/traces", Host=host)) == 200


def test_bound_to_the_network_only_addresses_and_own_names_answer():
    guard = Guard(None, Keys("t"), "box.example")
    assert (
        guard.answers_to("box.example:80")
        and guard.answers_to("192.168.1.7:80")
        and guard.answers_to("[fe80::1]")
    )
    assert not guard.answers_to("evil.example") and not guard.answers_to("box.example.evil.example")
    local = Guard(None, Keys(), "127.0.0.1")
    assert not local.answers_to("192.168.1.7") and not local.answers_to("box.example")


def test_what_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))
    assert host_name("[::1]:80") == "::1" and host_name("a:80") == "a" and host_name("a") == "a"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "https://{host}"},
        {"Origin": "http://{host}.evil.example"},
        {"Origin": "http://localhost:1"},
    ],
)
def test_a_forged_request_changes_nothing(page, store, headers):
    sent = {name: value and value.format(host=page.host) for name, value in headers.items()}
    for path, fields in (
        ("/label?id=trace-00001", {"said": "good"}),
        ("/undo", {}),
        ("/name", {"who": "eve"}),
    ):
        assert passed(page.post(path, fields, **sent)) == 403
    assert store.labels("trace-00001") == []


@pytest.mark.parametrize("key", [None, "", "wrong", "é"])
def test_a_form_needs_its_key(page, store, key):
    status, _, body = page.post("/label?id=trace-00001", {"said": "good", "key": key})
    assert status == 403 and "reload" in body and store.labels("trace-00001") == []


def test_our_own_form_is_heard(page, store):
    status, headers, _ = page.post("/label?id=trace-00001", {"said": "good", "note": "fine"})
    assert (status, headers["location"]) == (303, "/label")
    (said,) = store.labels("trace-00001")
    assert (said["label"], said["note"], said["who"]) == (True, "fine", "person")


def test_reading_never_changes_anything(page, store):
    for path in ("/label?id=trace-00001&said=good", "/undo", "/name?who=eve"):
        assert passed(page.get(path)) in (200, 405)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert passed(page.ask(method, "/label?id=trace-00001")) == 405
    assert store.labels("trace-00001") == []


def test_sizes_are_limited(page, store):
    large = {"said": "good", "note": "x" * LARGEST}
    assert passed(page.post("/label?id=trace-00001", large)) == 413
    assert passed(page.post("/label?id=trace-00001", {}, Content_Length="9" * 30)) in (400, 413)
    assert passed(
        page.post("/label?id=trace-00001", {}, Transfer_Encoding="chunked", Content_Length=None)
    ) in (400, 411)
    assert passed(page.post("/label?id=trace-00001", {"said": "good", "note": "x" * 5000})) == 400
    assert passed(page.post("/label?id=trace-00001", {str(n): "1" for n in range(100)})) == 400
    assert passed(page.get("/traces?text=" + "x" * 10_000)) == 414
    assert store.labels("trace-00001") == []
    with pytest.raises(ValueError):
        read_form(b"\xff\xfe=1")


def test_without_the_token_nothing_is_shown(serve, client, store, trace):
    store.append(trace(1))
    page = client(serve(token=True))
    for path in ("/traces", "/trace?id=trace-00001", "/label", "/?token=wrong", "/?token=", "/?token=%ff"):
        status, headers, body = page.get(path)
        assert status == 401 and "number 1" not in body and "set-cookie" not in headers
    assert passed(page.post("/label?id=trace-00001", {"said": "good"})) == 401
    assert passed(page.get("/traces", Cookie=f"rusty_pass={page.site.keys.token}")) == 401
    assert store.labels("trace-00001") == []


def test_the_token_opens_once_and_leaves_a_strict_cookie(serve, client, store):
    page = client(serve(token=True))
    assert page.site.address.endswith(f"?token={page.site.keys.token}") and len(page.site.keys.token) >= 32
    status, headers, _ = page.get(f"/traces?token={page.site.keys.token}&label=good")
    assert (status, headers["location"]) == (303, "/traces?label=good")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and page.site.keys.token not in cookie
    assert passed(page.get("/traces", Cookie=cookie.partition(";")[0])) == 200
    assert passed(page.get("/traces", Cookie="rusty_pass=wrong; \x01=")) in (400, 401)
    status, headers, _ = page.get(f"//evil.example/?token={page.site.keys.token}")
    assert status in (303, 404) and not headers.get("location", "").startswith("//")


def test_another_host_than_this_machine_always_asks_for_a_token(serve, client):
    page = client(serve(host="0.0.0.0"))
    assert page.site.keys.token and passed(page.get("/traces", Host="127.0.0.1")) == 401
    assert not serve().keys.token


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]])
def test_there_is_one_host_and_no_other(hosts):
    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b""}
    scope["headers"] = [(b"host", host) for host in hosts]
    assert Guard(None, Keys(), "127.0.0.1").refusal(scope, Headers(scope=scope)).status_code == 421
