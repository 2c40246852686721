"""The contract of a mind, held against every mind that can run here.

A new kind of policy joins by one more entry in MINDS: a function of the fixtures that gives a fresh one.
"""

import json
from dataclasses import replace

import pytest

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.prompt import SYSTEM, conversation
from rusty_r2.errors import ContextFull, PolicyError, ProtocolError
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render
from rusty_r2.trace import ExecutionTrace, Step

from .ollama import running

OPTIONS = MindOptions(temperature=0, max_new_tokens=32, top_k=0)
SHORT = replace(OPTIONS, max_new_tokens=14, context=1024)
"""for minds that are slower than ours"""


def scripted(request):
    return ScriptedPolicy(render(Cmd("ls")), "not an action", render(Msg("Dönë ✓.")))


def ours(request, **options):
    pytest.importorskip("llguidance", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.agent.rwkv import RwkvPolicy

    model, words = request.getfixturevalue("engine"), request.getfixturevalue("tokenizer")
    return RwkvPolicy(model, words, replace(OPTIONS, **options))


def llama(request, **options):
    """Two layers of SmolLM2 through llama.cpp in process."""
    from rusty_r2.agent.gguf import GGUFPolicy

    return GGUFPolicy(request.getfixturevalue("small_llama"), replace(SHORT, **options))


def borrowed(request, **options):
    """The same two layers through transformers."""
    model = request.getfixturevalue("small_transformer")
    from rusty_r2.agent.hf import HFPolicy

    return HFPolicy(model, replace(SHORT, **options))


def server(request, **options):
    """The same behind llama.cpp's own OpenAI-compatible server."""
    model = request.getfixturevalue("small_llama")
    request.getfixturevalue("monkeypatch").setenv("RUSTY_API_KEY", model.key)
    return open_policy(model.url, replace(SHORT, **options))


def ollama(request, **options):
    """The stand-in for Ollama."""
    request.getfixturevalue("monkeypatch").setenv("OLLAMA_HOST", request.getfixturevalue("ollama_url"))
    return open_policy("ollama:smol", replace(SHORT, max_new_tokens=64, **options))


@pytest.fixture(scope="session")
def ollama_url():
    with running() as stand_in:
        yield stand_in.url


MINDS = {
    "script": scripted,
    "rwkv": ours,
    "rwkv, no grammar": lambda request: ours(request, grammar=False),
    "rwkv, sampled": lambda request: ours(request, temperature=0.9, top_k=50, seed=3),
    "gguf": llama,
    "gguf, no grammar": lambda request: llama(request, grammar=False),
    "gguf, sampled": lambda request: llama(request, temperature=0.9, top_k=50, seed=3),
    "hf": borrowed,
    "hf, no grammar": lambda request: borrowed(request, grammar=False),
    "hf, sampled": lambda request: borrowed(request, temperature=0.9, top_k=50, seed=3),
    "http": server,
    "ollama": ollama,
}


@pytest.fixture(params=MINDS)
def fresh(request):
    """Makes a new policy of the same kind at each call."""
    return lambda: MINDS[request.param](request)


@pytest.fixture(params=[name for name in MINDS if "sampled" not in name])
def steady(request):
    """The same for those that leave nothing to chance."""
    return lambda: MINDS[request.param](request)


def asked(query="List the files.", *steps, **more):
    return ExecutionTrace(user_query=query, system_prompt=SYSTEM, steps=list(steps), **more)


def after(trace, reply, seen="exit 0\ntotal.py"):
    return trace.then(Step(reply.text, seen))


def test_it_says_who_it_is(fresh):
    policy = fresh()
    assert policy.name and isinstance(policy.digest, str)
    json.dumps(policy.sampling())


def test_a_reply_is_what_was_heard(fresh):
    heard = []
    reply = fresh().reply(asked(), listen=heard.append)
    assert reply.text and "".join(heard) == reply.text
    assert reply.tokens_out > 0 and reply.tokens_in >= 0 and reply.seconds >= reply.seconds_to_first >= 0
    assert len(reply.token_ids) == len(reply.logprobs)
    json.dumps(reply.facts)


def test_the_trace_it_reads_is_left_alone(fresh):
    trace = asked()
    before = trace.to_dict()
    fresh().reply(trace)
    assert trace.to_dict() == before


def test_the_same_words_get_the_same_answers(fresh):
    def talk():
        policy, trace = fresh(), asked()
        for _ in range(3):
            trace = after(trace, policy.reply(trace))
        return [step.reply for step in trace.steps]

    assert talk() == talk()


def test_conversations_do_not_mix(steady):
    policy, one, two = steady(), asked("One."), asked("Two, and quite another matter.")
    for _ in range(2):
        one, two = after(one, policy.reply(one)), after(two, policy.reply(two))
    for mixed, query in ((one, "One."), (two, "Two, and quite another matter.")):
        alone, trace = steady(), asked(query)
        for step in mixed.steps:
            assert alone.reply(trace).text == step.reply
            trace = trace.then(step)


def test_who_stops_listening_does_no_harm(steady):
    policy, trace = steady(), asked()

    def stop(piece):
        raise PolicyError("enough")

    with pytest.raises(PolicyError, match="enough"):
        policy.reply(trace, listen=stop)
    assert policy.reply(trace).text == steady().reply(trace).text


@pytest.mark.parametrize("mind", [name for name in MINDS if "no grammar" not in name and name != "script"])
def test_a_grammar_means_actions(mind, request):
    policy, trace = MINDS[mind](request), asked()
    assert policy.sampling()["grammar"] is True
    for _ in range(4):
        reply = policy.reply(trace)
        try:
            parse(reply.text)
        except ProtocolError:
            assert reply.facts["finish"] == "length" and not reply.text.startswith('{"action": "MSG", ')
        assert reply.text.startswith('{"action": "')
        trace = after(trace, reply)


# ── ours alone: nothing is read twice ───────────────────────────────────────────────────────────


def test_a_reply_reads_only_what_is_new(request, tokenizer):
    from rusty_r2.lm.chat import encode_turn

    policy, trace = ours(request), asked()
    first = policy.reply(trace)
    assert first.tokens_in == len(encode_turn(tokenizer, "user", "List the files.")) + 1
    trace = after(trace, first)
    second = policy.reply(trace)
    assert second.tokens_in == len(encode_turn(tokenizer, "observation", "exit 0\ntotal.py")) + 2
    assert ours(request).reply(trace).text == second.text, "going on is as good as reading all of it"


def test_the_next_request_goes_on_from_the_last(request, tokenizer):
    from rusty_r2.lm.chat import encode_turn

    policy, trace = ours(request), asked()
    trace = after(trace, policy.reply(trace), seen="")
    said = [{"role": turn.role, "content": turn.text} for turn in conversation(trace)[1:]]
    following = asked("Again.", history=said)
    reply = policy.reply(following)
    assert reply.tokens_in == len(encode_turn(tokenizer, "user", "Again.")) + 2
    assert ours(request).reply(following).text == reply.text


@pytest.mark.parametrize("limit", range(8, 40, 4))
def test_a_message_that_grew_too_long_is_closed_and_read_on_from(request, limit):
    policy, heard, trace = ours(request, max_new_tokens=limit, temperature=1.5, seed=limit), [], asked()
    for _ in range(6):
        heard.clear()
        reply = policy.reply(trace, listen=heard.append)
        assert "".join(heard) == reply.text and len(reply.token_ids) == len(reply.logprobs)
        if reply.text.startswith('{"action": "MSG", "message": "') and "\\u00" not in reply.text[-8:]:
            assert isinstance(parse(reply.text), Msg)
        trace = after(trace, reply)


def test_a_message_can_be_closed_wherever_it_was_cut_and_a_command_never_is(request, tokenizer):
    from rusty_r2.lm.engine import Completion

    policy = ours(request)

    def closed(text):
        ids = [tokenizer.token_bytes.index(bytes([byte])) for byte in (" " + text).encode()]
        said = Completion(ids, [], [], [], "length")
        return tokenizer.decode([*ids, *policy._closing(said)])

    whole = render(Msg('say "hi" \\ and \\\\ or\n\ttab "'))
    for cut in range(len(render(Msg(""))) - 2, len(whole)):
        assert isinstance(parse(closed(whole[:cut])), Msg), whole[:cut]
    for action in (Cmd("rm -rf build/old"), Edit("a.py", "x = 1")):
        for cut in range(len(render(action))):
            assert closed(render(action)[:cut]) == render(action)[:cut]


def test_logprobs_are_those_of_the_tokens(request, engine, tokenizer):
    reply = ours(request, temperature=1.0, grammar=False).reply(asked())
    from rusty_r2.lm.chat import encode_turns, open_reply

    ids, _ = encode_turns(tokenizer, [tuple(turn) for turn in conversation(asked())])
    scored, _ = engine.score([*ids, *open_reply(), *reply.token_ids])
    assert scored[-len(reply.token_ids) :] == pytest.approx(reply.logprobs, abs=1e-3)


def test_a_script_that_is_over_says_so():
    with pytest.raises(PolicyError, match="at its end"):
        ScriptedPolicy().reply(asked())


# ── borrowed minds: the same, and what their servers and files are owed ─────────────────────────


@pytest.mark.parametrize("mind", ["gguf", "hf", "http"])
def test_a_borrowed_mind_reads_only_what_is_new(mind, request):
    """The system prompt, the request and the reply are 100 tokens and more; a turn on top of them is few."""
    policy, trace = MINDS[mind](request), asked("Read only what is new.")
    first = policy.reply(trace)
    second = policy.reply(after(trace, first, seen="exit 0"))
    assert first.tokens_in + first.facts["tokens_kept"] > 100
    assert second.tokens_in < 40 and second.facts["tokens_kept"] > 90


@pytest.mark.parametrize("mind", ["gguf", "hf", "http"])
def test_a_conversation_too_long_is_an_error_and_not_cut(mind, request):
    seen = r"(context .*\d+: nothing was cut|exceeds the available context).*or ask for less$"
    with pytest.raises(ContextFull, match=seen):
        MINDS[mind](request).reply(asked("word " * 1100))


@pytest.mark.parametrize("mind", ["gguf", "hf"])
def test_a_message_of_a_borrowed_mind_is_closed(mind, request):
    """With chance enough one of these is a message that reaches the longest reply."""
    policy, trace, seen = MINDS[mind](request, temperature=2.0, seed=1, max_new_tokens=12), asked(), 0
    for _ in range(12):
        heard = []
        reply = policy.reply(trace, listen=heard.append)
        assert "".join(heard) == reply.text and len(reply.token_ids) == len(reply.logprobs)
        if reply.facts["finish"] == "length" and reply.text.startswith('{"action": "MSG", "message": "'):
            assert isinstance(parse(reply.text), Msg)
            seen += 1
        if seen:
            return
    pytest.fail("no message among twelve replies")


def test_smollm2_says_the_same_in_both(kept_smollm2, monkeypatch):
    """The whole model, through the door that a person uses; the first words are far from a tie."""
    monkeypatch.setenv("RUSTY_HOME", str(kept_smollm2.parents[1]))
    options = MindOptions(temperature=0, max_new_tokens=10, context=512)
    said = [open_policy(line, options).reply(asked("Hi")) for line in ("hf:smollm2", "gguf:smollm2")]
    assert said[0].token_ids == said[1].token_ids and said[0].text == said[1].text
    assert all(reply.text.startswith('{"action": "') for reply in said)
