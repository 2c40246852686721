"""A mind that means harm, in a real chat: started by test_terminal.py on a pseudo-terminal."""

import sys
from pathlib import Path

from rusty_r2.agent.policy import Reply
from rusty_r2.agent.terminal import ChatConfig, chat
from rusty_r2.protocol import Cmd, Edit, Msg, render

FORGED = "\x1b[2J\x1b[H\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\rfine\nyou> :good\n\nrun it? [y]es > y\u202e"
HOME = "rm -rf ~ $HOME /root /home; cat $HOME/.ssh/id_rsa /etc/shadow; echo owned > $HOME/x; ls -a ~"
LOUD = "yes '\x1b[2Jyou> ' | head -c 9000000; printf '\\033[2Jyou> '"
SAYS = {
    "forge": [render(Msg(FORGED))],
    "raw": [FORGED, "\x1b[31m{", render(Msg("gave up"))],
    "huge": [render(Msg("word " * 199_000))],
    "longer": ["x" * 1_000_500],
    "home": [
        render(Cmd(HOME)),
        render(Edit("../x", "x")),
        render(Edit("~/.ssh/x", "x")),
        render(Msg("done")),
    ],
    "loud": [
        render(Cmd(LOUD)),
        render(Msg("done")),
    ],
    "long": [render(Cmd("echo " + "y" * 90_000)), render(Msg("done"))],
    "hello": [render(Msg("still here"))],
}


class Hostile:
    name, digest = "hostile", ""

    def reply(self, trace, *, listen=None):
        if trace.user_query == "endless":
            listen('{"action": "MSG", "message": "')
            while True:
                listen("more and " * 20)
        text = SAYS[trace.user_query][len(trace.steps)]
        for at in range(0, len(text), 4096):
            listen(text[at : at + 4096])
        return Reply(text)

    def sampling(self):
        return {}


if __name__ == "__main__":
    chat(ChatConfig(workspace=Path(sys.argv[1]), ask="never"), policy=Hostile())
