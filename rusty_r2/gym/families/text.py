# SPDX-License-Identifier: AGPL-3.0-or-later
"""Terminal tasks about what is in files: sort, pick lines and columns, replace, join, edit a config."""

from __future__ import annotations

from rusty_r2.gym.families import names, words
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.shell import (
    change,
    extras,
    file_names,
    lines,
    log,
    text,
    users,
    without,
    word_list,
)
from rusty_r2.gym.families.wordings import of, then
from rusty_r2.task import Task


def sort(draw: Draw) -> Task:
    source, target = file_names(draw, 2, "txt")
    items = word_list(draw, draw.integer(5, 8))
    how, option, done = "up", "", sorted(items)
    if draw.level == 2:
        how, option, done = "down", "-r ", sorted(items, reverse=True)
        if draw.chance(0.5):
            items = [str(number) for number in dict.fromkeys(draw.integer(1, 400) for _ in range(7))]
            how, option, done = "number", "-n ", sorted(items, key=int)
    if draw.level == 3:
        items = draw.shuffled(items + items[:3])
        how, option, done = "once", "-u ", sorted(set(items))
    prompt = draw.say(of("sort.lines"))
    command = f"sort {option}{source} > {target}"
    slots = {"source": source, "target": target, "how": draw.say(of(f"sort.{how}"))}
    return change(prompt, {source: text(items)}, {target: text(done)}, command, **slots)


def pick_lines(draw: Draw) -> Task:
    source, target = file_names(draw, 2)
    wanted = draw.word(words.WORDS)
    other = without(draw, wanted)
    rows = [f"{other()} {other()}" for _ in range(draw.integer(5, 9))]
    marked = {draw.below(len(rows)) for _ in range(3)}
    rows = [f"{wanted} {row}" if i in marked else row for i, row in enumerate(rows)]
    kept = [row for row in rows if (wanted in row) == (draw.level < 3)]
    option = "-v " if draw.level == 3 else ""
    does = "lacks" if draw.level == 3 else "has"
    if draw.level == 2:
        rows = [row.title() if draw.chance(0.5) else row for row in rows]
        kept = [row for row in rows if wanted in row.lower()]
        option, does = "-i ", "any_case"
    prompt = draw.say(of("pick_lines.lines"))
    command = f"grep {option}{wanted} {source} > {target}"
    slots = {"source": source, "target": target, "wanted": wanted}
    slots["does"] = draw.say(of(f"pick_lines.{does}"))
    return change(prompt, {source: text(rows)}, {target: text(kept)}, command, **slots)


def ends(draw: Draw) -> Task:
    source, target = file_names(draw, 2)
    count = draw.integer(2, 6)
    rows = lines(draw, count + draw.integer(3, 6)).splitlines()
    side, tool = draw.any((("first", "head"), ("last", "tail")))
    kept = rows[:count] if side == "first" else rows[-count:]
    command = f"{tool} -n {count} {source} > {target}"
    if draw.level == 2:
        kept, command = rows[count:], f"tail -n +{count + 1} {source} > {target}"
    prompt = draw.say(of("ends.side"))
    if draw.level == 2:
        prompt = draw.say(of("ends.skip"))
    slots = {"source": source, "target": target, "count": count, "side": side}
    return change(prompt, {source: text(rows)}, {target: text(kept)}, command, **slots)


def columns(draw: Draw) -> Task:
    source = file_names(draw, 1, "csv")[0]
    target = file_names(draw, 1, "txt")[0]
    heads = ["name", *names.distinct(lambda: names.key(draw), 2)]
    people = names.distinct(lambda: names.user(draw), draw.integer(4, 7))
    rows = [heads] + [[who, str(draw.integer(10, 99)), str(draw.integer(100, 999))] for who in people]
    place = draw.below(3)
    body, column = text([",".join(row) for row in rows]), [row[place] for row in rows]
    prompt = draw.say(of("columns.one"))
    command = f"cut -d, -f{place + 1} {source} > {target}"
    which = ("first", "second", "third")[place]
    if draw.level == 2:
        prompt = then(prompt, draw.say(of("columns.headless")))
        column, command = column[1:], f"cut -d, -f{place + 1} {source} | tail -n +2 > {target}"
    return change(
        prompt, {source: body}, {target: text(column)}, command, which=which, source=source, target=target
    )


def replace(draw: Draw) -> Task:
    old, new = draw.words(words.WORDS, 2)
    other = without(draw, old, new)
    listed = file_names(draw, draw.level, "txt")
    files = {
        name: text([f"{other()} {old if draw.chance(0.6) or i == 1 else other()}" for i in range(4)])
        for name in listed
    }
    done = {name: body.replace(old, new) for name, body in files.items()}
    prompt = draw.say(of("replace.word"))
    where = " and ".join(listed) if draw.level < 3 else draw.say(of("replace.everywhere"))
    command = f"sed -i 's/{old}/{new}/g' {' '.join(listed) if draw.level < 3 else '*.txt'}"
    return change(prompt, files, done, command, old=old, new=new, where=where)


def config(draw: Draw) -> Task:
    name = f"{names.stem(draw)}.{draw.any(words.SETTING_ENDS)}"
    keys = names.distinct(lambda: names.key(draw), 4)
    values = {key: draw.number(10, 99) if draw.chance(0.6) else draw.word(words.WORDS) for key in keys}
    key, value = keys[draw.below(3)], draw.number(100, 9999)
    rows = [f"{k}={v}" for k, v in values.items()]
    done = [f"{k}={value if k == key else v}" for k, v in values.items()]
    command = f"sed -i 's/^{key}=.*/{key}={value}/' {name}"
    prompt = draw.say(of("config.set"))
    if draw.level == 2:
        done, command = [row for row in rows if not row.startswith(key + "=")], f"sed -i '/^{key}=/d' {name}"
        prompt = draw.say(of("config.remove"))
    if draw.level == 3:
        rows = [f"#{row}" if row.startswith(key + "=") else row for row in rows]
        done, command = [row.lstrip("#") for row in rows], f"sed -i 's/^#{key}=/{key}=/' {name}"
        prompt = draw.say(of("config.uncomment"))
    files = {name: text(rows)} | extras(draw, {name: ""}, 1)
    return change(prompt, files, {name: text(done)}, command, key=key, value=value, name=name)


def join(draw: Draw) -> Task:
    *sources, target = file_names(draw, 3 if draw.level == 1 else 4, "txt")
    files = {name: lines(draw, 2) for name in sources}
    body = "".join(files.values())
    prompt = draw.say(of("join.order"))
    command = f"cat {' '.join(sources)} > {target}"
    listed = ", ".join(sources[:-1]) + " and " + sources[-1]
    if draw.level == 3:
        body, command = text(sorted(body.splitlines())), f"sort {' '.join(sources)} > {target}"
        prompt = draw.say(of("join.sorted"))
    return change(prompt, files, {target: body}, command, listed=listed, target=target)


def summary(draw: Draw) -> Task:
    source, target = file_names(draw, 1, "log")[0], file_names(draw, 1, "txt")[0]
    rows = log(draw, draw.integer(8, 14), users(draw, 3))
    place = draw.any((1, 2))
    found = sorted({row.split()[place] for row in rows})
    what = ("levels", "users")[place - 1]
    command = f"cut -d' ' -f{place + 1} {source} | sort -u > {target}"
    prompt = draw.say(of("summary.distinct"))
    if draw.level == 2:
        level = draw.any([row.split()[1] for row in rows])
        found = [row for row in rows if f" {level} " in row]
        command = f"grep {level} {source} > {target}"
        what = level
        prompt = draw.say(of("summary.level"))
    return change(
        prompt, {source: text(rows)}, {target: text(found)}, command, source=source, target=target, what=what
    )


FAMILIES = (
    Family("sort", "sort a file's lines into another", "shell", sort),
    Family("pick_lines", "keep the lines that hold a word", "shell", pick_lines),
    Family("columns", "cut a column out of a table", "shell", columns, levels=(1, 2)),
    Family("replace", "replace a word in files", "shell", replace),
    Family("config", "change, remove or uncomment a setting", "shell", config),
    Family("join", "put files together", "shell", join),
    Family("summary", "summarise a log into a file", "shell", summary, levels=(1, 2)),
    Family("ends", "keep the first or last lines", "shell", ends, levels=(1, 2), split="heldout"),
)
