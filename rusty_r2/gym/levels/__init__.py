# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sandbox levels behind gym/sandbox.py, in two halves.

Supervisor, in your process:
    choose      which level, by trying them
    ns, bwrap, landlock (and off)      what each level opens
    spawned     the sandbox they all share: run, guest, read, write, files
    launch      start a spawner and talk to it;    watch    watch one payload, and end it
    files       a workspace, without following links;    changes    what runs did to the user's folder
    host        what of this machine payloads see, and as whom they run

Inside, in the spawner (a small Python with no packages; these modules are sent to it):
    zygote      its loop;    payload    the last steps of every forked child
    template    the root and the runs of ns;    bound    the user's folder there
    jail        runs without namespaces: landlock, bwrap, off
    kernel      Linux by ctypes;    seccomp    the system call filter
"""
