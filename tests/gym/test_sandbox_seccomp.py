# SPDX-License-Identifier: AGPL-3.0-or-later
"""The seccomp filters of both architectures, run in a simulator against the policy written out plainly."""

from __future__ import annotations

import errno
import itertools
import struct

import pytest

from rusty_r2.gym.levels import seccomp
from rusty_r2.gym.levels.seccomp import ALLOW, AUDIT_ARCH, ERRNO, KILL, NUMBERS

ARCHES = sorted(NUMBERS)
WORDS = (0, 1, 2, 10, 16, 40, 0x5412, 0x541C, 0x1_0000_5412, 0x7FFF_FFFF_0000_541C, 0x10000000, 0x20000,
         0x2000,          0x6000, 0x8000, 0x01200011, 1 << 32, (1 << 64) - 1)  # fmt: skip


def simulate(program: bytes, number: int, arguments: tuple[int, ...], arch: int) -> int:
    """Classic BPF, the five instructions we use."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *arguments)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == seccomp.RETURN:
            return value
        else:
            taken = {
                seccomp.EQUAL: accumulator == value,
                seccomp.AT_LEAST: accumulator >= value,
                seccomp.ANY_BIT: bool(accumulator & value),
            }[operation]
            at += yes if taken else no


def policy(arch: str, network: str, by_path: bool, number: int, arguments: tuple[int, ...]) -> int:
    """The same rules, as one would say them."""
    if arch == "x86_64" and number >= 0x40000000:
        return ERRNO | errno.ENOSYS
    name = {known: name for name, known in NUMBERS[arch].items()}.get(number, "")
    low = [argument & 0xFFFFFFFF for argument in arguments]
    if name in seccomp.DENIED or (not by_path and name in seccomp.BY_PATH):
        return ERRNO | errno.EPERM
    if name in ("clone3", "memfd_create"):
        return ERRNO | errno.ENOSYS
    if name == "socket" and network == "pairs":
        return ERRNO | errno.EAFNOSUPPORT
    if name in ("socket", "socketpair"):
        families = (1, 2, 10) if network in ("loopback", "host") else (1,)
        return ALLOW if low[0] in families else ERRNO | errno.EAFNOSUPPORT
    denied = (
        (name == "clone" and low[0] & 0x7E020080)
        or (name == "ioctl" and low[1] in (0x5412, 0x541C))
        or (name == "mknodat" and low[2] & 0x2000)
        or (name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr") and low[0] != 0)
        or (name == "sched_setaffinity" and not by_path and low[0] != 0)
        or (name == "setpriority" and (low[0], low[1]) != (0, 0))
        or (name == "ioprio_set" and (low[0], low[1]) != (1, 0))
        or (name == "utimensat" and not by_path and arguments[1] != 0)
    )
    return ERRNO | errno.EPERM if denied else ALLOW


@pytest.mark.parametrize("network", ["none", "loopback", "host", "pairs"])
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("by_path", [True, False])
def test_the_filter_is_the_policy(arch: str, network: str, by_path: bool) -> None:
    program = seccomp.program(arch, network, by_path=by_path)
    assert len(program) // 8 < 160
    for number in (*range(520), 0x40000000, 0x40000000 + 41, 0xFFFFFFFF):
        special = number in NUMBERS[arch].values()
        for word in WORDS if special else WORDS[:2]:
            for arguments in ((word,) * 6, (1, *(word,) * 5), (word, 0, 0, 0, 0, 0)):
                expected = policy(arch, network, by_path, number, arguments)
                assert simulate(program, number, arguments, AUDIT_ARCH[arch]) == expected, (number, hex(word))


@pytest.mark.parametrize("arch", ARCHES)
def test_a_foreign_architecture_is_killed(arch: str) -> None:
    foreign = [value for name, value in AUDIT_ARCH.items() if name != arch] + [0x40000003, 0x40000028, 0]
    for other, number in itertools.product(foreign, (0, 11, 41, 56, 0x40000001)):
        assert simulate(seccomp.program(arch), number, (0,) * 6, other) == KILL


def test_the_tables_are_sane() -> None:
    for arch in ARCHES:
        numbers = NUMBERS[arch]
        assert len(set(numbers.values())) == len(numbers)
        missing = {name for name in seccomp.DENIED if name not in numbers}
        only_x86 = {"create_module", "uselib", "modify_ldt", "_sysctl", "mknod", "iopl", "ioperm"}
        assert missing == (set() if arch == "x86_64" else only_x86)
