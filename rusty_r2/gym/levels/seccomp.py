# SPDX-License-Identifier: AGPL-3.0-or-later
"""The system calls a payload may not make, as a seccomp filter for x86_64 and aarch64.

A deny-list with default allow: compilers, shells and interpreters need most of the rest. Denied are the
calls that reach other processes, make namespaces or mounts, open kernel back doors, or hold memory that
no limit sees. `program` assembles a balanced search over call numbers (about 100 instructions, 10 steps
for a decision); it is pure, so tests run the programs of both architectures in a simulator. Installing
one is kernel.py's work.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Calls since 5.1 have one number on both.
_BOTH = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "close_range": 436, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
    "quotactl_fd": 443, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
    "landlock_restrict_self": 446, "memfd_secret": 447, "statmount": 457, "listmount": 458,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": _BOTH | {
        "shmget": 29, "shmat": 30, "socket": 41, "socketpair": 53, "clone": 56, "semget": 64, "msgget": 68,
        "ioctl": 16, "ptrace": 101, "syslog": 103, "mknod": 133, "uselib": 134, "vhangup": 153,
        "modify_ldt": 154, "pivot_root": 155, "_sysctl": 156, "chroot": 161, "acct": 163,
        "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "create_module": 174,
        "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212,
        "clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "mq_open": 240, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "mknodat": 259,
        "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        "chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "setxattr": 188, "lsetxattr": 189,
        "removexattr": 197, "lremovexattr": 198, "utimes": 235, "inotify_add_watch": 254, "fchownat": 260,
        "futimesat": 261, "fchmodat": 268, "utimensat": 280, "setpriority": 141, "sched_setparam": 142,
        "sched_setscheduler": 144, "sched_setaffinity": 203, "ioprio_set": 251, "prlimit64": 302,
        "sched_setattr": 314,
    },
    "aarch64": _BOTH | {
        "lookup_dcookie": 18, "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41,
        "chroot": 51, "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117,
        "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "mq_open": 180,
        "msgget": 186, "semget": 190, "shmget": 194, "shmat": 196, "socket": 198, "socketpair": 199,
        "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225,
        "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
        "setxattr": 5, "lsetxattr": 6, "removexattr": 14, "lremovexattr": 15, "inotify_add_watch": 27,
        "fchmodat": 53, "fchownat": 54, "utimensat": 88, "ioprio_set": 30, "sched_setparam": 118,
        "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "prlimit64": 261,
        "sched_setattr": 274,
    },
}  # fmt: skip

_DENIED = """
ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp
io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd fanotify_init lookup_dcookie
keyctl add_key request_key
mount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr
statmount listmount unshare setns chroot name_to_handle_at open_by_handle_at mknod
kexec_load kexec_file_load init_module finit_module delete_module create_module reboot swapon swapoff acct
quotactl quotactl_fd syslog settimeofday clock_settime clock_adjtime sethostname setdomainname iopl ioperm
vhangup memfd_secret shmget shmat semget msgget mq_open move_pages migrate_pages mbind set_mempolicy
uselib modify_ldt _sysctl file_setattr
"""
DENIED = _DENIED.split()
"""answered with EPERM"""
_BY_PATH = """
chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat inotify_add_watch
setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat
"""
BY_PATH = _BY_PATH.split()
"""calls that Landlock does not judge: denied too where it stands alone and the payload is the user"""
ON_SELF = ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr")
"""allowed with pid 0 only: a uid may lower the limits of all its processes, and so end its own init"""
ABSENT = ("clone3", "memfd_create")
"""answered with ENOSYS: libraries fall back to clone, whose flags a filter can read, and to files"""

NAMESPACE_FLAGS = 0x7E020080
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
CHAR_OR_BLOCK = 0x2000
IOPRIO_PROCESS = 1
X32_BIT = 0x40000000
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
INTERNET = (AF_UNIX, AF_INET, AF_INET6)
FAMILIES = {"none": (AF_UNIX,), "loopback": INTERNET, "host": INTERNET, "pairs": ()}
"""socket families by network; "pairs" allows no socket at all, only connected AF_UNIX pairs"""

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32


class _Assembler:
    """Instructions with named jump targets; classic BPF only jumps forward, at most 255."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, str, str]] = []
        self.labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        self.labels[name] = len(self.code)

    def load(self, offset: int) -> None:
        self.code.append((LOAD, offset, "", ""))

    def jump(self, test: int, value: int, yes: str, no: str) -> None:
        self.code.append((test, value, yes, no))

    def end(self, name: str, verdict: int) -> None:
        self.label(name)
        self.code.append((RETURN, verdict, "", ""))

    def bytes(self) -> bytes:
        packed = b""
        for at, (code, value, yes, no) in enumerate(self.code, start=1):
            steps = [self.labels[name] - at if name else 0 for name in (yes, no)]
            if not all(0 <= step <= 255 for step in steps):
                raise ValueError(f"jump too far at instruction {at}")
            packed += struct.pack("<HBBI", code, *steps, value)
        return packed


def program(arch: str, network: str = "none", *, by_path: bool = True) -> bytes:
    """The filter as the kernel wants it: an array of struct sock_filter."""
    asm = _Assembler()
    asm.load(_ARCH)
    asm.jump(EQUAL, AUDIT_ARCH[arch], "native", "kill")
    asm.label("native")
    asm.load(_NUMBER)
    if arch == "x86_64":
        asm.jump(AT_LEAST, X32_BIT, "enosys", "search")
        asm.label("search")
    for name, value, yes, no in _search(_ranges(arch, network, by_path)):
        asm.label(name)
        asm.jump(AT_LEAST, value, yes, no)
    _arguments(asm, FAMILIES[network] or (AF_UNIX,))
    for name, code in (("family", errno.EAFNOSUPPORT), ("eperm", errno.EPERM), ("enosys", errno.ENOSYS)):
        asm.end(name, ERRNO | code)
    asm.end("kill", KILL)
    asm.end("allow", ALLOW)
    return asm.bytes()


def _ranges(arch: str, network: str, by_path: bool) -> list[tuple[int, str]]:
    """(first number, where to go), in order; a range ends where the next begins."""
    numbers = NUMBERS[arch]
    special = {numbers[name]: "eperm" for name in DENIED if name in numbers}
    special |= {numbers[name]: "enosys" for name in ABSENT}
    if not by_path:
        special |= {numbers[name]: "eperm" for name in BY_PATH if name in numbers}
        special |= {numbers["utimensat"]: "utimensat", numbers["sched_setaffinity"]: "first is zero"}
    special |= {numbers[name]: "first is zero" for name in ON_SELF}
    special |= {numbers[name]: name for name in ("mknodat", "clone", "ioctl", "setpriority", "ioprio_set")}
    special |= {
        numbers["socket"]: "socket" if FAMILIES[network] else "family",
        numbers["socketpair"]: "socket",
    }
    ranges = [(0, "allow")]
    for number in sorted(special):
        ranges += [(number, special[number]), (number + 1, special.get(number + 1, "allow"))]
    first_of_each = dict(ranges)
    merged: list[tuple[int, str]] = []
    for number, target in sorted(first_of_each.items()):
        if not merged or merged[-1][1] != target:
            merged.append((number, target))
    return merged


def _search(ranges: list[tuple[int, str]]) -> Iterator[tuple[str, int, str, str]]:
    """A balanced tree over the ranges, breadth first so that every jump goes forward."""
    queue = [("node0", 0, len(ranges))]
    made = 1
    while queue:
        name, low, high = queue.pop(0)
        middle = (low + high) // 2
        targets = []
        for a, b in ((middle, high), (low, middle)):
            if b - a == 1:
                targets.append(ranges[a][1])
                continue
            targets.append(f"node{made}")
            queue.append((targets[-1], a, b))
            made += 1
        yield name, ranges[middle][0], targets[0], targets[1]


def _arguments(asm: _Assembler, families: tuple[int, ...]) -> None:
    """The calls whose arguments decide. Of flags only low halves are read: the kernel ignores the rest."""
    asm.label("first is zero")
    asm.load(_ARG0)
    asm.jump(EQUAL, 0, "allow", "eperm")
    asm.label("setpriority")  # of a process, not of a group or user
    asm.load(_ARG0)
    asm.jump(EQUAL, 0, "second is zero", "eperm")
    asm.label("ioprio_set")
    asm.load(_ARG0)
    asm.jump(EQUAL, IOPRIO_PROCESS, "second is zero", "eperm")
    asm.label("second is zero")
    asm.load(_ARG1)
    asm.jump(EQUAL, 0, "allow", "eperm")
    asm.label("utimensat")  # on an open file it names no path
    asm.load(_ARG1)
    asm.jump(EQUAL, 0, "utimensat2", "eperm")
    asm.label("utimensat2")
    asm.load(_ARG1 + 4)
    asm.jump(EQUAL, 0, "allow", "eperm")
    asm.label("mknodat")
    asm.load(_ARG2)
    asm.jump(ANY_BIT, CHAR_OR_BLOCK, "eperm", "allow")
    asm.label("clone")
    asm.load(_ARG0)
    asm.jump(ANY_BIT, NAMESPACE_FLAGS, "eperm", "allow")
    asm.label("ioctl")
    asm.load(_ARG1)
    asm.jump(EQUAL, TIOCSTI, "eperm", "ioctl2")
    asm.label("ioctl2")
    asm.jump(EQUAL, TIOCLINUX, "eperm", "allow")
    asm.label("socket")
    asm.load(_ARG0)
    for index, family in enumerate(families):
        last = index == len(families) - 1
        asm.jump(EQUAL, family, "allow", "family" if last else f"family{index}")
        asm.label(f"family{index}")
