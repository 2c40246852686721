# SPDX-License-Identifier: AGPL-3.0-or-later
"""Linux, through ctypes: clone, mounts, capabilities, limits, Landlock, seccomp, openat2. No packages.

Everything here does one kernel operation and raises OSError with its name when the kernel says no. It
knows no policy; zygote.py, template.py and jail.py decide. Runs on both sides: in the spawner and
(openat2, setfsuid) in the supervisor.
"""
# ruff: noqa: PTH112

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping

from rusty_r2.gym.levels import seccomp

ARCH = platform.machine()
NEW_USER, NEW_MOUNT, NEW_PID, NEW_NET = 0x10000000, 0x00020000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x1000, 0x8000, 1
ATTR_IDMAP = 0x00100000

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)
"""calls that keep the interpreter lock: a fork must not happen while it is half released"""


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def call(name: str, number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), name)


def prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def no_new_privileges() -> None:
    prctl(38, 1, "no_new_privs")


def die_with_parent() -> None:
    """SIGKILL when the parent *thread* ends: only for children of single-threaded processes."""
    prctl(1, signal.SIGKILL, "pdeathsig")


def dumpable(yes: bool) -> None:
    """A process that is not dumpable keeps its memory, environment and descriptors from others of its uid."""
    prctl(4, int(yes), "dumpable")


def adopt_orphans() -> None:
    prctl(36, 1, "subreaper")


def forget_keys() -> None:
    """A session keyring of our own: the user's keys would be listed in the payload's /proc/keys."""
    with contextlib.suppress(OSError):  # kernels without keys
        call("keyctl", seccomp.NUMBERS[ARCH]["keyctl"], ctypes.c_int(1), None)


def clone(flags: int) -> int:
    """os.fork with namespace flags, and the same care for the interpreter's state."""
    number = seccomp.NUMBERS[ARCH]["clone"]
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(
        _held.syscall(ctypes.c_long(number), ctypes.c_ulong(flags | signal.SIGCHLD), *[ctypes.c_long(0)] * 4)
    )
    code = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


def map_ids(process: str, inside: int, uid: int, gid: int) -> None:
    """Give a new user namespace its one user and its one group."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        write_file(f"/proc/{process}/{name}", text)


def write_file(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# ── mounts ──────────────────────────────────────────────────────────────────────────────────────


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    raw = [text.encode() if text else None for text in (source, target, kind, options)]
    result = _libc.mount(raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3])
    _check(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    call("pivot_root", seccomp.NUMBERS[ARCH]["pivot_root"], new.encode(), old.encode())


def set_attributes(path: str, attributes: int, *, recursive: bool = True) -> None:
    """READ_ONLY, NO_SUID and NO_DEV on a whole mount tree (mount_setattr, 5.12)."""
    data = struct.pack("<QQQQ", attributes, 0, 0, 0)
    buffer = ctypes.create_string_buffer(data, len(data))
    flags = ctypes.c_uint(AT_RECURSIVE if recursive else 0)
    call(
        "mount_setattr", 442, ctypes.c_int(AT_FDCWD), path.encode(), flags, buffer, ctypes.c_size_t(len(data))
    )


def idmapped_clone(path: str, user_namespace: int) -> int:
    """A detached copy of a mount whose owners are seen through a user namespace (root only)."""
    number = seccomp.NUMBERS[ARCH]["open_tree"]
    tree = call(
        "open_tree",
        number,
        ctypes.c_int(AT_FDCWD),
        path.encode(),
        ctypes.c_uint(OPEN_TREE_CLONE | os.O_CLOEXEC),
    )
    data = struct.pack("<QQQQ", ATTR_IDMAP, 0, 0, user_namespace)
    buffer = ctypes.create_string_buffer(data, len(data))
    flags = ctypes.c_uint(AT_EMPTY_PATH)
    try:
        call("mount_setattr idmap", 442, ctypes.c_int(tree), b"", flags, buffer, ctypes.c_size_t(len(data)))
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: str) -> None:
    """Put a detached mount somewhere (move_mount)."""
    call(
        "move_mount", 429, ctypes.c_int(tree), b"", ctypes.c_int(AT_FDCWD), target.encode(), ctypes.c_uint(4)
    )


# ── privileges and limits ───────────────────────────────────────────────────────────────────────


def drop_capabilities() -> None:
    for capability in range(64):
        if _libc.prctl(24, ctypes.c_ulong(capability), 0, 0, 0):
            break  # past the last one this kernel knows
    _libc.prctl(47, ctypes.c_ulong(4), 0, 0, 0)  # ambient set; kernels before 4.3 have none
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0), 8)
    _check(_libc.capset(header, ctypes.create_string_buffer(bytes(24), 24)), "capset")


def become(uid: int, gid: int) -> None:
    """Leave host root for good."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    dumpable(True)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """File operations of this thread run with the rights of uid (a no-op for everyone but root)."""
    if os.geteuid() != 0:
        yield
        return
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


def limit(limits: Mapping[str, int], *, more_processes: int = 0) -> None:
    """rlimits, hard and soft; what a payload could use to go around them is 0."""
    wanted = {
        resource.RLIMIT_CORE: 1,  # not 0: that still feeds the host's core dump program, 1 does not
        resource.RLIMIT_AS: limits["mem_process"],
        resource.RLIMIT_FSIZE: limits["fsize"],
        resource.RLIMIT_NOFILE: limits["nofile"],
        resource.RLIMIT_NPROC: limits["nproc"] + more_processes,
        resource.RLIMIT_STACK: limits["stack"],
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    for kind, value in wanted.items():
        _set_limit(kind, value, value)
    _set_limit(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def close_from(lowest: int) -> None:
    call("close_range", 436, ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, bytes(14)))


def set_hostname(name: bytes) -> None:
    _check(_libc.sethostname(name, len(name)), "sethostname")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install_filter(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    holder = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(holder), 0, 0), "seccomp")


# ── Landlock ────────────────────────────────────────────────────────────────────────────────────

_FS_SINCE = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read file, read directory
_ON_FILES = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)
SIGNALS = 2
SIGNALS_AND_ABSTRACT_SOCKETS = 3


def landlock_version() -> int:
    """0 where the kernel has none."""
    if ARCH not in seccomp.NUMBERS:
        return 0
    found = _libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(int(found), 0)


def landlock_scope() -> None:
    """A domain that only says: no signal may leave it."""
    no_new_privileges()
    _restrict(_ruleset(0, 0, SIGNALS, 6))


TCP = {"loopback": 0, "host": 1}
"""what is denied of TCP by network, elsewhere all: 1 is to listen, 2 to connect"""


def landlock(read: Iterable[str], write: Iterable[str], *, version: int, network: str) -> None:
    """Everything not named is denied; TCP, outside signals and abstract sockets too, where the kernel can."""
    handled = 0
    for since, rights in _FS_SINCE.items():
        handled |= rights if version >= since else 0
    ruleset = _ruleset(handled, TCP.get(network, 3), SIGNALS_AND_ABSTRACT_SOCKETS, version)
    for paths, rights in ((read, _READ), (write, handled)):
        for path in paths:
            _allow(ruleset, path, rights & handled)
    no_new_privileges()
    _restrict(ruleset)


def _ruleset(files: int, network: int, scope: int, version: int) -> int:
    data = struct.pack("<QQQ", files, network, scope)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    buffer = ctypes.create_string_buffer(data, len(data))
    return call("landlock_create_ruleset", 444, buffer, ctypes.c_size_t(len(data)), ctypes.c_uint(0))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _ON_FILES
        rule = struct.pack("<Qi", rights, descriptor)
        buffer = ctypes.create_string_buffer(rule, len(rule))
        call("landlock_add_rule", 445, ctypes.c_int(ruleset), ctypes.c_int(1), buffer, ctypes.c_uint(0))
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> None:
    try:
        call("landlock_restrict_self", 446, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


# ── paths that a payload may have laid traps in ─────────────────────────────────────────────────

BENEATH_NO_LINKS = 0x01 | 0x02 | 0x04 | 0x08  # no other mount, no magic link, no symlink, not above


def open_beneath(
    folder: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = BENEATH_NO_LINKS
) -> int:
    """openat2: a path that leaves `folder`, by a link, a mount or dots, is refused by the kernel."""
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, resolve)
    buffer = ctypes.create_string_buffer(how, len(how))
    return call(
        f"open {path!a}", 437, ctypes.c_int(folder), os.fsencode(path), buffer, ctypes.c_size_t(len(how))
    )
