# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sandbox levels behind gym/sandbox.py.

Two sides. Supervisor (in your process): `launch` starts a spawner and watches one payload, `files` reads
and writes a workspace without following links, and `ns`, `bwrap`, `landlock`, `off` are the levels.
Inside (in the spawner, a small Python with no packages): `zygote` is its loop, `template` builds the root
of `ns`, `jail` does without namespaces, `kernel` and `seccomp` speak to Linux.
"""
