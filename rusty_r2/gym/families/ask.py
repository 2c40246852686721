# SPDX-License-Identifier: AGPL-3.0-or-later
"""Terminal tasks that ask something: look with one command, then answer in a message."""

from __future__ import annotations

from collections import Counter

from rusty_r2.gym.families import names, words
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.shell import extras, file_names, lines, log, question, text, users, without
from rusty_r2.gym.families.wordings import of
from rusty_r2.task import Task


def count_lines(draw: Draw) -> Task:
    name = file_names(draw, 1)[0]
    folder = f"{names.folder(draw)}/" if draw.level == 2 else ""
    body = lines(draw, draw.integer(5, 40))
    files = {folder + name: body} | extras(draw, {name: ""}, 1)
    prompt = draw.say(of("count_lines.ask"))
    return question(prompt, files, body.count("\n"), f"wc -l {folder}{name}", name=folder + name)


def count_words(draw: Draw) -> Task:
    name = file_names(draw, 1)[0]
    body = lines(draw, draw.integer(3, 9))
    files = {name: body} | extras(draw, {name: ""}, 1)
    prompt = draw.say(of("count_words.ask"))
    return question(prompt, files, len(body.split()), f"wc -w {name}", name=name)


def count_matches(draw: Draw) -> Task:
    name = file_names(draw, 1, "log")[0]
    rows = log(draw, draw.integer(12, 30), users(draw, 3))
    wanted = draw.any([row.split()[2 if draw.level > 1 else draw.any((1, 2))] for row in rows])
    found = [row for row in rows if f" {wanted} " in row]
    command = f"grep -c {wanted} {name}"
    prompt = draw.say(of("count_matches.one"))
    level = ""
    if draw.level == 3:
        level = draw.any([row.split()[1] for row in found])
        found = [row for row in found if f" {level} " in row]
        command = f"grep {wanted} {name} | grep -c {level}"
        prompt = draw.say(of("count_matches.both"))
    return question(prompt, {name: text(rows)}, len(found), command, name=name, wanted=wanted, level=level)


def find_file(draw: Draw) -> Task:
    folders = names.folders(draw, 4)
    name, other = file_names(draw, 2)
    deep = "/".join(draw.shuffled(folders)[: draw.level])
    files = {f"{folder}/{other}": lines(draw, 1) for folder in folders} | {f"{deep}/{name}": lines(draw, 2)}
    prompt = draw.say(of("find_file.ask"))
    return question(prompt, files, f"{deep}/{name}", f"find * -name {name}", name=name)


def find_word(draw: Draw) -> Task:
    listed = file_names(draw, 4)
    wanted = draw.word(words.WORDS)
    other = without(draw, wanted)
    folder = f"{names.folder(draw)}/" if draw.level > 1 else ""
    files = {folder + name: text([f"{other()} {other()}" for _ in range(3)]) for name in listed}
    where = folder + listed[0]
    files[where] = files[where] + f"{other()} {wanted}\n"
    files = dict(sorted(files.items()))
    prompt = draw.say(of("find_word.ask"))
    return question(prompt, files, where, f"grep -rl {wanted} *", wanted=wanted)


def read_value(draw: Draw) -> Task:
    name = f"{names.stem(draw)}.{draw.any(words.SETTING_ENDS)}"
    keys = names.apart(lambda: names.key(draw), 5)
    folder = f"{names.folder(draw)}/" if draw.level == 2 else ""
    values = {key: str(draw.integer(100, 9999)) for key in keys}
    key = draw.any(keys)
    files = {folder + name: text([f"{k}={v}" for k, v in values.items()])} | extras(draw, {name: ""}, 1)
    prompt = draw.say(of("read_value.ask"))
    return question(prompt, files, values[key], f"grep {key} {folder}{name}", key=key, name=folder + name)


def most_common(draw: Draw) -> Task:
    name = file_names(draw, 1, "log")[0]
    people = users(draw, 4)
    rows = log(draw, draw.integer(8, 16), people)
    while not _leads(people[0], rows):
        rows.append(rows[-1].replace(f" {rows[-1].split()[2]} ", f" {people[0]} "))
    prompt = draw.say(of("most_common.ask"))
    command = f"cut -d' ' -f3 {name} | sort | uniq -c | sort -rn | head -n 1"
    count = sum(row.split()[2] == people[0] for row in rows)
    return question(prompt, {name: text(rows)}, count, command, name=name)


def _leads(user: str, rows: list[str]) -> bool:
    counts = Counter(row.split()[2] for row in rows)
    return all(counts[user] > count for other, count in counts.items() if other != user)


def count_files(draw: Draw) -> Task:
    end, other = draw.words(words.ENDS, 2)
    stems = names.stems(draw, draw.integer(6, 10))
    folders = [f"{folder}/" for folder in names.folders(draw, 3)] if draw.level == 2 else [""]
    kept = draw.integer(3, len(stems) - 1)
    files = {
        f"{draw.any(folders)}{stem}.{end if i < kept else other}": f"{stem}\n" for i, stem in enumerate(stems)
    }
    prompt = draw.say(of("count_files.ask"))
    where = draw.say(of("everywhere.where")) if draw.level == 2 else ""
    command = f"find . -name '*.{end}' | wc -l" if draw.level == 2 else f"ls *.{end} | wc -l"
    return question(prompt, files, kept, command, end=end, where=where)


FAMILIES = (
    Family("count_lines", "how many lines a file has", "shell", count_lines, levels=(1, 2)),
    Family("count_matches", "how many lines hold a word", "shell", count_matches),
    Family("find_file", "where a file is", "shell", find_file),
    Family("read_value", "what a setting is", "shell", read_value, levels=(1, 2)),
    Family(
        "most_common", "how often the most frequent user of a log occurs", "shell", most_common, levels=(3,)
    ),
    Family("count_files", "how many files have an ending", "shell", count_files, levels=(1, 2)),
    Family("count_words", "how many words a file has", "shell", count_words, levels=(1,), split="heldout"),
    Family("find_word", "which file holds a word", "shell", find_word, levels=(1, 2), split="heldout"),
)
