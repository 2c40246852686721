# SPDX-License-Identifier: AGPL-3.0-or-later
"""Terminal tasks about files as such: rename, move, copy, remove, create, lay out folders."""

from __future__ import annotations

from rusty_r2.gym.families import names, words
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.shell import change, extras, file_names, lines
from rusty_r2.task import Task


def rename(draw: Draw) -> Task:
    old, new = file_names(draw, 2)
    folder = f"{names.folder(draw)}/" if draw.level > 1 else ""
    body = lines(draw, 2)
    if draw.level == 3:
        return _rename_ends(draw, folder)
    prompt = draw.say(
        "Rename $old to $new.",
        "Give the file $old the new name $new.",
        "The file $old should be called $new.",
        "Change the name of $old into $new.",
    )
    files = {folder + old: body} | extras(draw, {old: "", new: ""}, draw.level)
    done = {folder + old: None, folder + new: body}
    return change(prompt, files, done, f"mv {folder}{old} {folder}{new}", old=folder + old, new=folder + new)


def _rename_ends(draw: Draw, folder: str) -> Task:
    old, new = draw.words(words.ENDS, 2)
    stems = names.stems(draw, 3)
    files = {f"{folder}{stem}.{old}": lines(draw, 2) for stem in stems}
    done: dict[str, str | None] = dict.fromkeys(files)
    done |= {f"{folder}{stem}.{new}": files[f"{folder}{stem}.{old}"] for stem in stems}
    prompt = draw.say(
        "In $folder, rename every .$old file so that it ends in .$new.",
        "Change the ending of all .$old files in $folder to .$new.",
        "All files in $folder that end in .$old should end in .$new.",
        "Turn each .$old file of $folder into a .$new file by renaming it.",
    )
    loop = f'for f in {folder}*.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done'
    return change(prompt, files, done, loop, folder=folder, old=old, new=new)


def move(draw: Draw) -> Task:
    folder = names.folder(draw)
    kept = {f"{folder}/{names.stem(draw)}.keep": "stay\n"}
    if draw.level == 1:
        name = file_names(draw, 1)[0]
        body = lines(draw, 2)
        prompt = draw.say(
            "Move $name into the folder $folder.",
            "Put the file $name into $folder.",
            "$name belongs in the folder $folder. Move it there.",
            "Take $name and move it to the folder $folder.",
        )
        files = {name: body, **kept} | extras(draw, {name: ""}, 1)
        done = {name: None, f"{folder}/{name}": body}
        return change(prompt, files, done, f"mv {name} {folder}/", name=name, folder=folder)
    end, other = draw.words(words.ENDS, 2)
    stems = names.stems(draw, 4)
    files = {f"{stem}.{end}": lines(draw, 1) for stem in stems[:3]} | {f"{stems[3]}.{other}": "keep me\n"}
    moved = [name for name in files if name.endswith(f".{end}")]
    expect: dict[str, str | None] = dict.fromkeys(moved) | {f"{folder}/{n}": files[n] for n in moved}
    prompt = draw.say(
        "Move all .$end files into the folder $folder.",
        "Put every file that ends in .$end into $folder.",
        "All .$end files belong in $folder. Move them there.",
        "Collect the files ending in .$end in the folder $folder.",
    )
    if draw.level == 2:
        return change(prompt, files | kept, expect, f"mv *.{end} {folder}/", end=end, folder=folder)
    prompt += draw.say(" The folder does not exist yet.", " Create the folder first.")
    command = f"mkdir {folder} && mv *.{end} {folder}/"
    return change(prompt, files, expect, command, end=end, folder=folder)


def copy(draw: Draw) -> Task:
    old, new = file_names(draw, 2)
    folder = names.folder(draw)
    body = lines(draw, 2)
    kept = {f"{folder}/{names.stem(draw)}.keep": "stay\n"} if draw.level > 1 else {}
    files = {old: body, **kept} | extras(draw, {old: "", new: ""}, 1)
    if draw.level == 1:
        prompt = draw.say(
            "Copy $old to $new.",
            "Make a copy of $old called $new.",
            "Create $new as a copy of $old.",
            "Duplicate $old under the name $new.",
        )
        return change(prompt, files, {new: body}, f"cp {old} {new}", old=old, new=new)
    prompt = draw.say(
        "Copy $old into the folder $folder.",
        "Put a copy of $old into $folder.",
        "The folder $folder needs a copy of $old.",
        "Place a duplicate of $old in the folder $folder.",
    )
    if draw.level == 2:
        done = {f"{folder}/{old}": body}
        return change(prompt, files, done, f"cp {old} {folder}/", old=old, folder=folder)
    prompt += draw.say(" Call the copy $new.", " The copy gets the name $new.")
    command = f"cp {old} {folder}/{new}"
    return change(prompt, files, {f"{folder}/{new}": body}, command, old=old, folder=folder, new=new)


def remove(draw: Draw) -> Task:
    end = draw.word(words.JUNK_ENDS)
    listed = file_names(draw, 4, "txt")
    folders = names.folders(draw, 2)
    if draw.level == 1:
        files = {name: lines(draw, 1) for name in listed[:3]}
        prompt = draw.say(
            "Delete the file $name.",
            "Remove $name.",
            "$name is no longer needed. Delete it.",
            "Get rid of the file $name.",
        )
        return change(prompt, files, {listed[0]: None}, f"rm {listed[0]}", name=listed[0])
    junk = [f"{name.partition('.')[0]}.{end}" for name in listed[:2]]
    if draw.level == 3:
        junk = [f"{folder}/{name}" for folder, name in zip(folders, junk, strict=True)]
    files = dict.fromkeys(junk, "junk\n") | {name: lines(draw, 1) for name in listed[2:]}
    prompt = draw.say(
        "Delete all files that end in .$end$where.",
        "Remove every .$end file$where.",
        "The .$end files$where are no longer needed. Delete them.",
        "Clean up: get rid of each .$end file$where.",
    )
    command = f"rm *.{end}" if draw.level == 2 else f"find . -name '*.{end}' -delete"
    where = " in all folders" if draw.level == 3 else ""
    return change(prompt, files, dict.fromkeys(junk), command, end=end, where=where)


def create(draw: Draw) -> Task:
    name = file_names(draw, 1)[0]
    said = draw.words(words.WORDS, draw.level + draw.integer(1, 2))
    said += [str(draw.number(10, 999))] if draw.chance(0.2) else []
    files = extras(draw, {name: ""}, 2)
    if draw.level == 1:
        prompt = draw.say(
            "Create a file $name that holds the line: $line",
            "Make a new file $name with the text: $line",
            "Write this line into a new file called $name: $line",
            "A file $name is wanted. Its only line is: $line",
        )
        line = " ".join(said)
        return change(prompt, files, {name: line + "\n"}, f"echo {line} > {name}", name=name, line=line)
    if draw.level == 2:
        old = lines(draw, 3)
        prompt = draw.say(
            "Add this line at the end of $name: $line",
            "Append the line to $name: $line",
            "The file $name needs one more line at its end: $line",
            "Put the following line below the last one of $name: $line",
        )
        line = " ".join(said)
        done = {name: old + line + "\n"}
        return change(prompt, files | {name: old}, done, f"echo {line} >> {name}", name=name, line=line)
    prompt = draw.say(
        "Create the file $name with these words, each on its own line: $listed",
        "Write $name: one line for each of the words $listed",
        "Make a file $name that has the words $listed, one to a line.",
        "Put the words $listed into a new file $name, one below the other.",
    )
    body = "".join(f"{word}\n" for word in said)
    command = f"printf '%s\\n' {' '.join(said)} > {name}"
    return change(prompt, files, {name: body}, command, name=name, listed=", ".join(said))


def layout(draw: Draw) -> Task:
    folders = names.folders(draw, 3)
    name = file_names(draw, 1)[0]
    files = extras(draw, {name: ""}, 1)
    path = "/".join(folders[: draw.level])
    if draw.level < 3:
        prompt = draw.say(
            "Make the folder $path and in it an empty file $name.",
            "Create a folder $path that holds an empty file called $name.",
            "Set up $path with an empty file $name inside.",
            "There should be a folder $path, and an empty $name in it.",
        )
        command = f"mkdir -p {path} && touch {path}/{name}"
        return change(prompt, files, {f"{path}/{name}": ""}, command, path=path, name=name)
    first, second = (f"{folders[0]}/{folder}" for folder in folders[1:])
    prompt = draw.say(
        "Make the folders $first and $second, and an empty file $name in each.",
        "Create $first and $second; each holds an empty file called $name.",
        "Set up two folders, $first and $second, with an empty $name in both.",
        "There should be folders $first and $second, each with an empty $name.",
    )
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
