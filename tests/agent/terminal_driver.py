"""A person at a real terminal: a pseudo-terminal of a fixed size, keys sent, words awaited."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE = 90
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
        self.raw = ""
        self._read_to = 0

    def send(self, keys):
        os.write(self.master, keys.encode())

    def type(self, line):
        self.send(line + "\r")

    def wait(self, *words):
        """Read until each of the words has come after the last one waited for; returns the text between."""
        start = self._read_to
        for word in words:
            self._wait_for(word)
        return plain(self.raw[start : self._read_to])

    def _wait_for(self, word):
        end = time.monotonic() + PATIENCE
        while True:
            at = self.raw.find(word, self._read_to)
            if at >= 0:
                self._read_to = at + len(word)
                return
            if not self._more(end):
                raise AssertionError(
                    f"{word!r} did not come; the screen:\n{plain(self.raw)[-1500:]}"
                )

    def _more(self, end):
        ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:
            data = b""
        self.raw += data.decode("utf-8", "replace")
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
