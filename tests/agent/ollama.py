"""A stand-in for Ollama's chat: a fake, strict where the real one (0.33, recorded) is strict.

It has no model: what it answers depends on the messages alone. It counts a token a word, cuts a prompt that
does not fit without a word unless it is told not to, and refuses most things with HTTP 200 and an error line.
"""

import hashlib
import importlib.util
import json
from pathlib import Path

from rusty_r2.protocol import Cmd, Msg, render

_spec = importlib.util.spec_from_file_location("serving", Path(__file__).parents[1] / "serving.py")
serving = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(serving)


class Ollama(serving.Server):
    def __init__(self):
        super().__init__(Handler)
        self.asked = []
        self.headers = []
        self.busy = 0
        """refuse so many requests first"""
        self.knows_truncate = True
        """older servers do not know the word, and cut"""
        self.breaks_off = False


class Handler(serving.Handler):
    def do_GET(self):
        if self.path != "/api/tags":
            return self.fail(404, "404 page not found")
        details = {"family": "llama", "context_length": 200, "quantization_level": "Q8_0"}
        model = {
            "name": "smol:latest",
            "model": "smol:latest",
            "digest": "7328fb942b49232fedd8",
            "details": details,
        }
        return self.say({"models": [model]})

    def do_POST(self):
        body = self.body()
        self.server.asked.append(body)
        self.server.headers.append(dict(self.headers))
        if self.server.busy:
            self.server.busy -= 1
            return self.fail(503, "server busy, please try again.  maximum pending requests exceeded")
        if self.path != "/api/chat":
            return self.fail(404, "404 page not found")
        if body["model"] not in ("smol", "smol:latest"):
            return self.fail(404, f"model '{body['model']}' not found")
        return self.chat(body)

    def chat(self, body):
        options = body.get("options", {})
        room = min(options.get("num_ctx", 4096), 200)
        words = [len(message["content"].split()) for message in body["messages"]]
        if sum(words) > room:
            if body.get("truncate") is False and self.server.knows_truncate:
                return self.lines([{"error": "the input length exceeds the context length"}])
            while sum(words) > room and len(words) > 2:
                del words[1]
        said = self.answer(body, options["num_predict"])
        lines = [self.piece(word) for word in said]
        if self.server.breaks_off:
            return self.lines(lines)
        told = {"prompt_eval_count": min(sum(words), room), "eval_count": len(said), "load_duration": 1357472}
        reason = "length" if len(said) == options["num_predict"] else "stop"
        return self.lines([*lines, self.piece("") | {"done": True, "done_reason": reason, **told}])

    def answer(self, body, most):
        number = int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest(), 16)
        text = render(Cmd(f"ls {number % 97}") if number % 2 else Msg(f"Dönë ✓ {number % 97}."))
        if not body.get("format"):
            text = f"Sure! {text}"
        words = text.split(" ")[:most]
        return [*(f"{word} " for word in words[:-1]), words[-1]]

    def piece(self, text):
        message = {"role": "assistant", "content": text}
        return {"model": "smol", "created_at": "2026-11-15T01:22:31.6Z", "message": message, "done": False}


def running():
    return serving.running(Ollama())
