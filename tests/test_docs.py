"""Documents are kept true by machines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2 import __version__, cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_changelog_knows_this_version():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == __version__


def test_the_command_page_is_what_the_code_says():
    written = subprocess.run(
        [sys.executable, "-c", "import cli_docs; print(cli_docs.page(), end='')"],
        cwd=ROOT / "tools", capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "cli.md").read_text() == written, "run: python tools/cli_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_links_in_the_documents_exist(page):
    text = page.read_text()
    for words in re.findall(r"(?:^|`|\$ )rusty ([a-z]+(?: [a-z]+)?)", text, re.M):
        first, _, second = words.partition(" ")
        rooms = {name.split()[0] for name in cli.COMMANDS}
        known = words in cli.COMMANDS or first in cli.COMMANDS or (first in rooms and not second)
        assert known, f"{page.name} speaks of `rusty {words}`"
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_options_in_the_documents_and_scripts_exist():
    options = {"": {"help", "config"}}
    for part in (ROOT / "docs" / "cli.md").read_text().split("\n## rusty ")[1:]:
        options[part.splitlines()[0]] = set(re.findall(r"^\| `--([\w-]+)`", part, re.M))
    wrong = []
    for page in (*PAGES, *(ROOT / "runs").glob("*.sh")):
        told = page.read_text().replace("\\\n", " ")
        for words in re.findall(r"(?:^|`|\$ |\|\| )rusty ([a-z][^\n`#|]*)", told, re.M):
            name = next((n for n in (" ".join(words.split()[:2]), words.split()[0]) if n in cli.COMMANDS), "")
            said = re.findall(r"(?<=\s--)[a-z][\w-]*", words.replace("_", "-"))
            known = options[name] | options[""] | {f"no-{option}" for option in options[name]}
            wrong += [
                f"{page.name}: rusty {name} --{option}" for option in said if name and option not in known
            ]
    assert not wrong


def test_the_readme_leads_to_the_main_loop_in_one_click():
    assert "](rusty_r2/agent/rollout.py)" in (ROOT / "README.md").read_text()


def test_the_two_commands_are_on_the_first_screen():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make run" in first_screen and "make test" in first_screen
