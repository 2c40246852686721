# SPDX-License-Identifier: AGPL-3.0-or-later
"""Terminal tasks about files as such: rename, move, copy, remove, create, lay out folders."""

from __future__ import annotations

from rusty_r2.gym.families import names, words
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.shell import change, extras, file_names, lines
from rusty_r2.gym.families.wordings import of, then
from rusty_r2.task import Task


def rename(draw: Draw) -> Task:
    old, new = file_names(draw, 2)
    folder = f"{names.folder(draw)}/" if draw.level > 1 else ""
    body = lines(draw, 2)
    if draw.level == 3:
        return _rename_ends(draw, folder)
    prompt = draw.say(of("rename.file"))
    files = {folder + old: body} | extras(draw, {old: "", new: ""}, draw.level)
    done = {folder + old: None, folder + new: body}
    return change(prompt, files, done, f"mv {folder}{old} {folder}{new}", old=folder + old, new=folder + new)


def _rename_ends(draw: Draw, folder: str) -> Task:
    old, new = draw.words(words.ENDS, 2)
    stems = names.stems(draw, 3)
    files = {f"{folder}{stem}.{old}": lines(draw, 2) for stem in stems}
    done: dict[str, str | None] = dict.fromkeys(files)
    done |= {f"{folder}{stem}.{new}": files[f"{folder}{stem}.{old}"] for stem in stems}
    prompt = draw.say(of("rename.ending"))
    loop = f'for f in {folder}*.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done'
    return change(prompt, files, done, loop, folder=folder, old=old, new=new)


def move(draw: Draw) -> Task:
    folder = names.folder(draw)
    kept = {f"{folder}/{names.stem(draw)}.keep": "stay\n"}
    if draw.level == 1:
        name = file_names(draw, 1)[0]
        body = lines(draw, 2)
        prompt = draw.say(of("move.file"))
        files = {name: body, **kept} | extras(draw, {name: ""}, 1)
        done = {name: None, f"{folder}/{name}": body}
        return change(prompt, files, done, f"mv {name} {folder}/", name=name, folder=folder)
    end, other = draw.words(words.ENDS, 2)
    stems = names.stems(draw, 4)
    files = {f"{stem}.{end}": lines(draw, 1) for stem in stems[:3]} | {f"{stems[3]}.{other}": "keep me\n"}
    moved = [name for name in files if name.endswith(f".{end}")]
    expect: dict[str, str | None] = dict.fromkeys(moved) | {f"{folder}/{n}": files[n] for n in moved}
    prompt = draw.say(of("move.ending"))
    if draw.level == 2:
        return change(prompt, files | kept, expect, f"mv *.{end} {folder}/", end=end, folder=folder)
    prompt = then(prompt, draw.say(of("move.new_folder")))
    command = f"mkdir {folder} && mv *.{end} {folder}/"
    return change(prompt, files, expect, command, end=end, folder=folder)


def copy(draw: Draw) -> Task:
    old, new = file_names(draw, 2)
    folder = names.folder(draw)
    body = lines(draw, 2)
    kept = {f"{folder}/{names.stem(draw)}.keep": "stay\n"} if draw.level > 1 else {}
    files = {old: body, **kept} | extras(draw, {old: "", new: ""}, 1)
    if draw.level == 1:
        prompt = draw.say(of("copy.file"))
        return change(prompt, files, {new: body}, f"cp {old} {new}", old=old, new=new)
    prompt = draw.say(of("copy.folder"))
    if draw.level == 2:
        done = {f"{folder}/{old}": body}
        return change(prompt, files, done, f"cp {old} {folder}/", old=old, folder=folder)
    prompt = then(prompt, draw.say(of("copy.name")))
    command = f"cp {old} {folder}/{new}"
    return change(prompt, files, {f"{folder}/{new}": body}, command, old=old, folder=folder, new=new)


def remove(draw: Draw) -> Task:
    end = draw.word(words.JUNK_ENDS)
    listed = file_names(draw, 4, "txt")
    folders = names.folders(draw, 2)
    if draw.level == 1:
        files = {name: lines(draw, 1) for name in listed[:3]}
        prompt = draw.say(of("remove.file"))
        return change(prompt, files, {listed[0]: None}, f"rm {listed[0]}", name=listed[0])
    junk = [f"{name.partition('.')[0]}.{end}" for name in listed[:2]]
    if draw.level == 3:
        junk = [f"{folder}/{name}" for folder, name in zip(folders, junk, strict=True)]
    files = dict.fromkeys(junk, "junk\n") | {name: lines(draw, 1) for name in listed[2:]}
    prompt = draw.say(of("remove.ending"))
    command = f"rm *.{end}" if draw.level == 2 else f"find . -name '*.{end}' -delete"
    where = draw.say(of("everywhere.where")) if draw.level == 3 else ""
    return change(prompt, files, dict.fromkeys(junk), command, end=end, where=where)


def create(draw: Draw) -> Task:
    name = file_names(draw, 1)[0]
    said = draw.words(words.WORDS, draw.level + draw.integer(1, 2))
    said += [str(draw.number(10, 999))] if draw.chance(0.2) else []
    files = extras(draw, {name: ""}, 2)
    if draw.level == 1:
        prompt = draw.say(of("create.line"))
        line = " ".join(said)
        return change(prompt, files, {name: line + "\n"}, f"echo {line} > {name}", name=name, line=line)
    if draw.level == 2:
        old = lines(draw, 3)
        prompt = draw.say(of("create.append"))
        line = " ".join(said)
        done = {name: old + line + "\n"}
        return change(prompt, files | {name: old}, done, f"echo {line} >> {name}", name=name, line=line)
    prompt = draw.say(of("create.listed"))
    body = "".join(f"{word}\n" for word in said)
    command = f"printf '%s\\n' {' '.join(said)} > {name}"
    return change(prompt, files, {name: body}, command, name=name, listed=", ".join(said))


def layout(draw: Draw) -> Task:
    folders = names.folders(draw, 3)
    name = file_names(draw, 1)[0]
    files = extras(draw, {name: ""}, 1)
    path = "/".join(folders[: draw.level])
    if draw.level < 3:
        prompt = draw.say(of("layout.one"))
        command = f"mkdir -p {path} && touch {path}/{name}"
        return change(prompt, files, {f"{path}/{name}": ""}, command, path=path, name=name)
    first, second = (f"{folders[0]}/{folder}" for folder in folders[1:])
    prompt = draw.say(of("layout.two"))
    done = {f"{first}/{name}": "", f"{second}/{name}": ""}
    command = f"mkdir -p {first} {second} && touch {' '.join(done)}"
    return change(prompt, files, done, command, first=first, second=second, name=name)


FAMILIES = (
    Family("rename", "give a file, or all of one ending, a new name", "shell", rename),
    Family("move", "put files into a folder", "shell", move),
    Family("remove", "delete a file, or all of one ending", "shell", remove),
    Family("create", "write or extend a small file", "shell", create),
    Family("layout", "make folders with empty files in them", "shell", layout),
    Family("copy", "copy a file", "shell", copy, split="heldout"),
)
