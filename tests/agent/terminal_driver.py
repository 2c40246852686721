"""A person at a real terminal: a pseudo-terminal of a fixed size, keys sent, words awaited."""

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE = 60
"""seconds before a missing word is a failure; a guard against hanging, nothing is measured"""
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>78]|\([A-Z])")


class Terminal:
    def __init__(self, program, *, env=None, cwd=None, columns=100):
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *program],
            stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})},
        )  # fmt: skip
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        self.text = ""
        """the same without the sequences a terminal obeys"""
        self._read_to = self._plain_to = 0

    def send(self, keys):
        os.write(self.master, keys.encode())

    def type(self, line):
        self.send(line + "\r")

    def wait(self, *words):
        """Read until each of the words has come after the last one waited for; returns the text between."""
        start = self._read_to
        for word in words:
            self._wait_for(word)
        return self.text[start : self._read_to]

    def _wait_for(self, word):
        end = time.monotonic() + PATIENCE
        while True:
            at = self.text.find(word, self._read_to)
            if at >= 0:
                self._read_to = at + len(word)
                return
            if not self._more(end):
                raise AssertionError(f"{word!r} did not come; the screen:\n{self.text[-1500:]}")

    def _more(self, end):
        ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:
            data = b""
        self.raw += self._decoder.decode(data)
        half = self.raw.rfind("\x1b", max(self._plain_to, len(self.raw) - 16))  # a sequence may be cut in two
        end = half if half >= 0 and data else len(self.raw)
        self.text += plain(self.raw[self._plain_to : end])
        self._plain_to = end
        return bool(data)

    def ends(self):
        """Wait for the program to end; returns its exit code."""
        end = time.monotonic() + PATIENCE
        while self._more(end):
            pass
        return self.process.wait(timeout=PATIENCE)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def plain(text):
    """The text without the sequences a terminal obeys."""
    return _SEQUENCE.sub("", text).replace("\r", "")
