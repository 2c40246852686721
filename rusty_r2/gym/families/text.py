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
from rusty_r2.task import Task


def sort(draw: Draw) -> Task:
    source, target = file_names(draw, 2, "txt")
    items = word_list(draw, draw.integer(5, 8))
    how, option, done = "alphabetically", "", sorted(items)
    if draw.level == 2:
        how, option, done = "in reverse alphabetical order", "-r ", sorted(items, reverse=True)
        if draw.chance(0.5):
            items = [str(number) for number in dict.fromkeys(draw.integer(1, 400) for _ in range(7))]
            how, option, done = "by number, smallest first", "-n ", sorted(items, key=int)
    if draw.level == 3:
        items = draw.shuffled(items + items[:3])
        how, option, done = "alphabetically, each line only once", "-u ", sorted(set(items))
    prompt = draw.say(
        "Sort the lines of $source $how and write them to $target.",
        "Write the lines of $source to $target, sorted $how.",
        "$target should hold the lines of $source sorted $how.",
        "Take $source, sort it $how, and save that as $target.",
    )
    command = f"sort {option}{source} > {target}"
    slots = {"source": source, "target": target, "how": how}
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
    does = "do not contain" if draw.level == 3 else "contain"
    if draw.level == 2:
        rows = [row.title() if draw.chance(0.5) else row for row in rows]
        kept = [row for row in rows if wanted in row.lower()]
        option, does = "-i ", "contain, in capital or small letters,"
    prompt = draw.say(
        "Write the lines of $source that $does the word $wanted to $target.",
        "Save to $target all lines of $source that $does $wanted.",
        "$target should hold those lines of $source which $does $wanted.",
        "From $source take the lines that $does $wanted, and put them in $target.",
    )
    command = f"grep {option}{wanted} {source} > {target}"
    slots = {"source": source, "target": target, "wanted": wanted, "does": does}
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
    prompt = draw.say(
        "Write the $side $count lines of $source to $target.",
        "Save the $side $count lines of $source as $target.",
        "$target should hold the $side $count lines of $source.",
        "Take the $side $count lines of $source and put them in $target.",
    )
    if draw.level == 2:
        prompt = draw.say(
            "Write all of $source but its first $count lines to $target.",
            "Save $source without the first $count lines as $target.",
            "$target should hold $source except for the first $count lines.",
            "Skip the first $count lines of $source and put the others in $target.",
        )
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
    prompt = draw.say(
        "Write the $which column of $source to $target.",
        "Save the $which column of $source as $target.",
        "$target should hold only the $which column of $source.",
        "Cut the $which column out of $source and put it in $target.",
    )
    command = f"cut -d, -f{place + 1} {source} > {target}"
    which = ("first", "second", "third")[place]
    if draw.level == 2:
        prompt += draw.say(" Leave out the first line.", " Skip the header line.", " Without the header.")
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
    prompt = draw.say(
        "Replace $old with $new in $where.",
        "In $where, change every $old to $new.",
        "Each $old in $where should become $new.",
        "Swap the word $old for $new throughout $where.",
    )
    where = " and ".join(listed) if draw.level < 3 else "all .txt files"
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
    prompt = draw.say(
        "Set $key to $value in $name.",
        "Change the value of $key in $name to $value.",
        "In $name, $key should be $value.",
        "Edit $name so that $key is $value.",
    )
    if draw.level == 2:
        done, command = [row for row in rows if not row.startswith(key + "=")], f"sed -i '/^{key}=/d' {name}"
        prompt = draw.say(
            "Delete the line with $key from $name.",
            "Remove the setting $key from $name.",
            "$name should no longer have the setting $key.",
            "Take the line of $key out of $name.",
        )
    if draw.level == 3:
        rows = [f"#{row}" if row.startswith(key + "=") else row for row in rows]
        done, command = [row.lstrip("#") for row in rows], f"sed -i 's/^#{key}=/{key}=/' {name}"
        prompt = draw.say(
            "Uncomment the line of $key in $name.",
            "In $name, $key is commented out with #. Remove that #.",
            "Switch the setting $key in $name on by taking away its #.",
            "The line of $key in $name must not be a comment any more.",
        )
    files = {name: text(rows)} | extras(draw, {name: ""}, 1)
    return change(prompt, files, {name: text(done)}, command, key=key, value=value, name=name)


def join(draw: Draw) -> Task:
    *sources, target = file_names(draw, 3 if draw.level == 1 else 4, "txt")
    files = {name: lines(draw, 2) for name in sources}
    body = "".join(files.values())
    prompt = draw.say(
        "Join $listed into $target, in this order.",
        "Write $target: the lines of $listed, one file after the other.",
        "$target should hold $listed one after the other.",
        "Put $listed together, in this order, as $target.",
    )
    command = f"cat {' '.join(sources)} > {target}"
    listed = ", ".join(sources[:-1]) + " and " + sources[-1]
    if draw.level == 3:
        body, command = text(sorted(body.splitlines())), f"sort {' '.join(sources)} > {target}"
        prompt = draw.say(
            "Sort the lines of $listed together and write them to $target.",
            "Write all lines of $listed to $target in alphabetical order.",
            "$target should hold the lines of $listed, sorted as one.",
            "Merge $listed into one sorted file $target.",
        )
    return change(prompt, files, {target: body}, command, listed=listed, target=target)


def summary(draw: Draw) -> Task:
    source, target = file_names(draw, 1, "log")[0], file_names(draw, 1, "txt")[0]
    rows = log(draw, draw.integer(8, 14), users(draw, 3))
    place = draw.any((1, 2))
    found = sorted({row.split()[place] for row in rows})
    what = ("levels", "users")[place - 1]
    command = f"cut -d' ' -f{place + 1} {source} | sort -u > {target}"
    prompt = draw.say(
        "Each line of $source is: time, level, user, action. Write the $what to $target, sorted, each once.",
        "List the different $what of $source (time level user action) in $target, sorted.",
        "$target should hold the $what in $source once each, sorted. Lines are time level user action.",
        "Which $what are in $source (time level user action)? Put them sorted, each once, in $target.",
    )
    if draw.level == 2:
        level = draw.any([row.split()[1] for row in rows])
        found = [row for row in rows if f" {level} " in row]
        command = f"grep {level} {source} > {target}"
        what = level
        prompt = draw.say(
            "Write the $what lines of $source to $target.",
            "Save every line of $source at level $what to $target.",
            "$target should hold only the $what lines of the log $source.",
            "Collect what $source logged as $what in $target.",
        )
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
