"""Round trips, unknown fields, ids, and secrets that stay outside."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.errors import TraceError
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render
from rusty_r2.redact import redact, redact_all
from rusty_r2.trace import ExecutionTrace, ReasoningStep, Step, ToolCallTrace, new_id

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
traces = st.builds(
    ExecutionTrace,
    session_id=text,
    user_query=text,
    final_response=text,
    tool_calls=st.lists(
        st.builds(
            ToolCallTrace,
            text,
            st.dictionaries(text, json_data, max_size=2),
            json_data,
            st.booleans(),
            st.floats(0, 9),
        ),
        max_size=2,
    ),
    reasoning_steps=st.lists(st.builds(ReasoningStep, text, text, st.floats(0, 1)), max_size=2),
    steps=st.lists(
        st.builds(Step, text, text, st.booleans(), token_ids=st.lists(st.integers(0, 23999))), max_size=2
    ),
    label=st.none() | st.booleans(),
    reward_score=st.none() | st.floats(-1, 1),
    sampling=st.dictionaries(text, json_data, max_size=2),
)


@given(traces)
def test_json_round_trip(trace):
    assert ExecutionTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


@given(st.dictionaries(text.map("x_".__add__), json_data, max_size=3))
def test_unknown_fields_pass_through_and_the_input_is_not_changed(unknown):
    data = {"trace_id": "a", "user_query": "q", **unknown}
    before = json.dumps(data)
    assert {**ExecutionTrace.from_dict(data).to_dict()}.items() >= data.items()
    assert json.dumps(data) == before


CALL = {"tool_name": "t", "arguments": {}, "result": None, "success": True, "duration_ms": 1}


def test_a_tools_result_is_whatever_it_said():
    for result in (None, True, 3, [1], {"a": 1}, "x"):
        found = ExecutionTrace.from_dict({"tool_calls": [{**CALL, "result": result, "error": None}]})
        assert found.tool_calls[0].result == result


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user_query", 3),
        ("label", "yes"),
        ("tool_calls", {}),
        ("tool_calls", [1]),
        ("steps", [{"ok": True}]),
        ("total_cost", "x"),
        ("history", ["hello"]),
        ("steps", [{"reply": 3}]),
        ("steps", [{"reply": "r", "ok": "yes"}]),
        ("steps", [{"reply": "r", "token_ids": ["1"]}]),
        ("steps", [{"reply": "r", "token_ids": [True]}]),
        ("steps", [{"reply": "r", "logprobs": 0.5}]),
        ("reasoning_steps", [{"step_type": "t", "content": None}]),
        ("tool_calls", [{**CALL, "arguments": "rm"}]),
        ("tool_calls", [{**CALL, "success": 1}]),
        ("tool_calls", [{**CALL, "duration_ms": True}]),
        ("tool_calls", [{**CALL, "duration_ms": 10**30}]),
        ("execution_duration_ms", 10**30),
        ("total_cost", float("nan")),
        ("total_tokens_in", -(2**63)),
    ],
)
def test_a_wrong_type_is_named(field, value):
    with pytest.raises(TraceError, match=field):
        ExecutionTrace.from_dict({field: value})


def test_ids_never_collide_and_sort_by_time():
    ids = [new_id() for _ in range(20_000)]
    assert len(set(ids)) == len(ids) and ids[0] < ids[-1]
    assert ExecutionTrace(user_query="same").trace_id != ExecutionTrace(user_query="same").trace_id


def test_a_trace_grows_and_derives_its_meaning():
    trace = (
        ExecutionTrace(user_query="q")
        .then(Step("uh", ok=False))
        .then(Step(render(Cmd("ls"))))
        .then(Step(render(Msg("ok"))))
    )
    assert [step.action for step in trace.steps] == [None, Cmd("ls"), Msg("ok")]
    assert trace.answer == "ok"


AWS, GITHUB, OPENAI = (
    "AKIA" + "Q3EXBMPL7JUZ5TKD",
    "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8",
    "sk-" + "proj-aB3dE5fG7hJ9kL2mN4pQ",
)
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE " + "KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"export AWS={AWS}", AWS),
        (f"git clone https://{GITHUB}@host/x", GITHUB),
        (f"key is {OPENAI}.", OPENAI),
        (f"cat key\n{PEM}\nend", "MIIEow"),
        ("postgres://bob:hunter22@db/x", "hunter22"),
        ("Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
        ('{"password": "correct-horse-9"}', "correct-horse-9"),
        ("MY_API_KEY=zx81spectrum48k", "zx81spectrum48k"),
        ("mysql --password=tr0ub4dor", "tr0ub4dor"),
        ("blob Zk3vQ9xT7bL2mN8pR4sW6yA1cE5gJ0hUfD", "Zk3vQ9xT7bL2mN8pR4sW6yA1cE5gJ0hUfD"),
        ("postgres://bob:hunt@er22@db/x", "er22"),
        ("curl -s -u bob:hunter22 https://host/x", "hunter22"),
        ("PASSWORD=P@$$w0rd1", "w0rd1"),
        ("password: hunter22getaway", "hunter22getaway"),
        ("curl -su bob:hunter22 https://host/x", "hunter22"),
        ("mysql -u root -phunter22 shop", "hunter22"),
        ("mysqldump -phush shop > shop.sql", "hush"),
        ("/usr/bin/mysqladmin -uroot -p'two words' ping", "words"),
        ("mariadb-dump --password=abc shop", "abc"),
        ("mysql -NBpHUNTER22 -e 'select 1'", "HUNTER22"),
        ("mysql --password HUNTER22", "HUNTER22"),
        ("AccountKey=abcd1234/abcd1234+abcd1234==", "abcd1234+abcd1234"),
        ("export PASSWORD=my_secret_password", "my_secret"),
        ("DB_PASSWORD=sunshine", "sunshine"),
        ("SMTP_PASS=hunter22", "hunter22"),
        ("MYSQL_PWD=hunter22 mysql shop", "hunter22"),
        ("PRIVATE_KEY=0a1b2c3d4e5f", "0a1b2c3d"),
        ("curl -H 'Authorization: Token 9944b09199c62bcf9418ad846dd0'", "9944b0"),
        ("Authorization: 9944b09199c62bcf9418ad846dd0", "9944b0"),
        ("git clone https://9944b09199c62bcf9418ad846dd0@host/x", "9944b0"),
        ("sshpass -p hunter22 ssh root@host", "hunter22"),
        ("docker login -u bob -p 'hunter22' host", "hunter22"),
        ("gpg --batch --passphrase hunter22 -c x", "hunter22"),
        ("openssl rsa -passin pass:hunter22 -in k", "hunter22"),
        ("machine host login bob password hunter22", "hunter22"),
        ("//host/:_auth=dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ],
)
def test_secrets_are_cut_out_and_counted(text, secret):
    clean, count = redact(text)
    assert secret not in clean and count >= 1 and "[redacted:" in clean


RANDOM = "a1B2c3D4e5" * 4


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        ("ASIA", "QX7BMPL3JUZ5TKDH"),
        ("AIza", RANDOM[:35]),
        ("npm_", RANDOM[:36]),
        ("SG.", f"{RANDOM[:22]}.{RANDOM}"),
        ("AGE-SECRET-KEY-1", RANDOM.upper() + "QPZRY"),
        ("eyJ", f"{RANDOM[:9]}.eyJ{RANDOM[:9]}.{RANDOM}"),
        *((start, RANDOM) for start in ("ghs_", "github_pat_", "glpat-", "sk-", "sk-ant-", "rk_live_")),
        *((start, RANDOM) for start in ("sk_test_", "xoxb-", "hf_", "pypi-", "ya29.", "dckr_pat_")),
    ],
)
def test_keys_are_known_by_their_first_letters(start, rest):
    clean, count = redact(f"x = {start}{rest}!")
    assert count == 1 and re.fullmatch(r"x = \[redacted:(?!random)[a-z-]+\]!", clean)


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "id 123e4567-e89b-12d3-a456-426614174000",
        "password = os.environ['PASSWORD']",
        "tokens: 128 of 512",
        "the token count is large",
        "def get_token(self, tokenizer_path): return self.token",
        "https://example.org:8080/path/to/some/very/long/page/name.html",
        "/usr/lib/python3/dist-packages/setuptools/command/build_clib.py",
        "--token TOKEN",
        "api_key=YOUR_API_KEY",
        "tokenizer = AutoTokenizer.from_pretrained('llama-3.2-1b')",
        "tokenizer_path: models/llama-3.2-1b",
        "password = getpass.getpass()",
        "password = auth[2] if auth else ''",
        "tokens: Sequence[Sequence[int]], token_ids: list[list[int]]",
        "docker run -u 1000:1000 image",
        "curl https://api-us.host:8443/v1 --url=http://localhost:8080/",
        "mysql --user=user --password=password database",
        "mysql -uroot -p shop; mkdir -pv a/b",
        "mysql -u root -p$MYSQL_PASS -hprod.host -P3306 shop",
        "mysqldump -pPASSWORD shop",
        "docker run --name mysql -p3306:3306 mysql",
        "pip install mysqlclient && make -prod",
        "sed -i 's/^api_key=.*/api_key=527/' monitor.conf",
        "generate(max_new_tokens=config.max_new_tokens, pad_token_id=tokenizer.eos_token_id)",
        "self.access_token = access_token",
        "rate = (tokens - tokens_then) / elapsed",
        "the Basic Multilingual Plane",
        "base_model: HuggingFaceTB/SmolLM2-135M-Instruct",
        "PASSWORD=$1 TOKEN=${TOKEN} PASSWORD=PASSWORD",
        "connect(PASSWORD=settings.db_password, SECRET_KEY=secret_key)",
        "n_pass=first_pass_2 OLDPWD=/home/bob2",
        "self._auth = auth_from_file; login or password wanted",
        "Authorization: required for /v1",
        "ssh://687fb701029421ae5549d998@host git@host:x/y.git",
    ],
)
def test_ordinary_text_survives(text):
    assert redact(text) == (text, 0)


def test_what_was_cut_is_not_cut_again():
    assert redact(f"git clone https://{GITHUB}@host/x") == (
        "git clone https://[redacted:github-token]@host/x",
        1,
    )


def test_redaction_reaches_every_part_and_drops_the_tokens_of_a_changed_reply():
    trace = ExecutionTrace(
        user_query=f"use {AWS}",
        tool_calls=[ToolCallTrace("sh", {"cmd": f"echo {OPENAI}"}, f"{GITHUB}", True, 1.0)],
        steps=[
            Step(f"say {AWS}", token_ids=[1, 2], logprobs=[-1.0, -2.0]),
            Step("clean", token_ids=[3], logprobs=[-1.0]),
        ],
    )
    clean = trace.redacted()
    assert not any(secret in json.dumps(clean.to_dict()) for secret in (AWS, OPENAI, GITHUB))
    assert clean.redactions == 4 and clean.trace_id == trace.trace_id
    assert clean.steps[0].token_ids == [] and clean.steps[1].token_ids == [3]


@pytest.mark.parametrize(
    "action",
    [
        Edit("c.py", 'PASSWORD = "hunter22-x"\nprint(1)\n'),
        Edit("c.json", '{"api_key": "hunter22-x"}'),
        Cmd("mysql --password hunter22-x"),
        Cmd('mysql --password "hunter22-x"'),
        Cmd("mysql -phunter22-x shop"),
        Cmd('mysql -p"hunter22-x" -e "select 1"\necho'),
        Cmd("export TOKEN='hunter22-x'\nrun"),
        Cmd('curl -u "bob:hunter22-x" https://host'),
        Msg('the password: "hunter22-x"; say it to nobody'),
    ],
)
def test_a_secret_in_a_reply_is_cut_out_and_the_reply_stays_the_same_action(action):
    clean, count = redact(render(action))
    assert count == 1 and "hunter22" not in clean
    kept = parse(clean)
    assert type(kept) is type(action)
    for before, after in zip(vars(action).values(), vars(kept).values(), strict=True):
        assert after == before or after.split("[redacted:")[0] == before.split("hunter22")[0]
        assert after.split("]")[-1] == before.split("hunter22-x")[-1]


@pytest.mark.parametrize(
    ("data", "secret"),
    [
        ({"password": "hunter22-x"}, "hunter22"),
        ({"env": {"DB_PASSWORD": "hunter22-x"}}, "hunter22"),
        ({"clientSecret": "hunter22-x", "maxTokens": "12-34-56"}, "hunter22"),
        ({"headers": {"x-api-key": "0123456789abcdef"}}, "0123456789abcdef"),
        ({"Authorization": "dXNlcjpodW50ZXIyMg=="}, "dXNlcjpodW50ZXIyMg"),
        ({"Authorization": "Token 9944b09199c62bcf9418ad84"}, "9944b0"),
        ({"argv": ["mysql", "--password", "hunter22-x"]}, "hunter22"),
        ({"argv": ["/usr/bin/mysql", "-uroot", "-phunter22-x", "shop"]}, "hunter22"),
        ({"tokens": ["hunter22-x"], "token": ["hunter22-y"]}, "hunter22-y"),
    ],
)
def test_in_plain_data_the_key_or_the_flag_gives_a_secret_away(data, secret):
    clean, count = redact_all(data)
    assert count == 1 and secret not in json.dumps(clean)
    assert redact_all(clean) == (clean, 0)


def test_keys_that_only_sound_like_secrets_hide_nothing():
    data = {
        "max_tokens": "12-34-56",
        "tokenizer": "llama-3.2-1b",
        "secretary": "bob-the-2nd",
        "token": "none",
        "password": "<password>",
        "eos_token": "<|im_end|>",
    }
    assert redact_all(data) == (data, 0)


def test_redaction_is_linear_in_its_input():
    for text in (
        "a" * 100_000,
        "password " * 10_000,
        "https://" * 10_000,
        "-----BEGIN PRIVATE KEY-----" * 1_000,
        "=" * 70_000,
        "password=" + "\\" * 70_000,
        "curl -u " * 10_000,
        "mysql -u " * 10_000,
        "mysql -p'" * 10_000,
        "docker login " * 10_000,
        "authorization: a " * 10_000,
        "https://" + "a" * 70_000,
        "ftp://a:" + "@" * 70_000,
    ):
        redact(text)
