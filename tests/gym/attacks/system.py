# SPDX-License-Identifier: AGPL-3.0-or-later
"""Attacks by network, and on the kernel itself."""

# ruff: noqa: E501

from __future__ import annotations

from world import Attack, py, sh


def hit(name):
    def check(world, result):
        import time

        time.sleep(0.02)
        return name in world.hits or b"ESCAPED" in result.stdout

    return check


def _connect(family, address, kind="SOCK_STREAM"):
    return py(
        f"try:\n  s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(1); s.connect({address}); s.send(b'x'); time.sleep(.05)\n"
        "except OSError: pass"
    )


def _families():
    numbers = {
        "VSOCK": 40,
        "NETLINK": 16,
        "PACKET": 17,
        "ALG": 38,
        "BLUETOOTH": 31,
        "CAN": 29,
        "TIPC": 30,
        "XDP": 44,
        "KEY": 15,
    }
    return py(
        f"for n, f in {numbers!r}.items():\n  for k in (1, 2, 3, 5):\n"
        "    try: socket.socket(f, k); escaped(n, k)\n    except OSError as e:\n"
        "      if e.errno not in (1, 13, 97, 94, 93, 22): escaped(n, e)"
    )


NETWORK = [
    Attack("N01", "TCP to a service on this machine", _connect("AF_INET", "('127.0.0.1', <tcp>)"), "any", hit("tcp")),
    Attack("N02", "TCP to the internet", py(
        "for host in ('1.1.1.1', '8.8.8.8'):\n  try: socket.create_connection((host, 53), 0.5); escaped()\n  except OSError: pass")),
    Attack("N03", "UDP to a service on this machine", _connect("AF_INET", "('127.0.0.1', <udp>)", "SOCK_DGRAM"), "any", hit("udp")),
    Attack("N04", "DNS", py("try: socket.getaddrinfo('example.com', 80); escaped()\nexcept OSError: pass")),
    Attack("N05", "a service's socket file (docker.sock)", _connect("AF_UNIX", "'<unix>'"), "any", hit("unix")),
    Attack("N06", "an abstract socket", _connect("AF_UNIX", "'\\0<abstract>'"), "any", hit("abstract")),
    Attack("N07", "vsock, netlink, packet, alg and other families", _families(), "any"),
    Attack("N08", "bash /dev/tcp", sh("exec 3<>/dev/tcp/127.0.0.1/<tcp>"), "any", hit("tcp")),
    Attack("N09", "listen where others can connect", py(
        "try: s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); escaped()\nexcept OSError: pass"), "any"),
    Attack("N10", "IPv6", py("try: socket.socket(socket.AF_INET6); escaped()\nexcept OSError: pass"), "any"),
    Attack("N11", "a datagram to a socket file", _connect("AF_UNIX", "'<unix>'", "SOCK_DGRAM"), "never", hit("unix")),
    Attack("N12", "see the host's interfaces", sh("grep -vE 'lo:|Inter|face' /proc/net/dev 2>/dev/null | grep -q . && echo ESCAPED; true"), "any"),
    Attack("N13", "the cloud's metadata address", py(
        "try: socket.create_connection(('169.254.169.254', 80), 0.5); escaped()\nexcept OSError: pass")),
]  # fmt: skip

KERNEL = [
    Attack("S01", "a new user namespace", py("reached('unshare', 0x10000000)\nreached('clone', 0x10000011, 0, 0, 0, 0)"), "any"),
    Attack("S02", "other new namespaces", py("for f in (0x20000, 0x40000000, 0x20000000, 0x8000000, 0x80): reached('unshare', f)"), "root"),
    Attack("S03", "io_uring", py("reached('io_uring_setup', 1, ctypes.create_string_buffer(128))"), "any"),
    Attack("S04", "bpf", py("reached('bpf', 0, 0, 0)"), "root"),
    Attack("S05", "perf events", py("reached('perf_event_open', 0, 0, -1, -1, 0)"), "any"),
    Attack("S06", "userfaultfd", py("reached('userfaultfd', 0)"), "root"),
    Attack("S07", "kernel keyrings", py("reached('keyctl', 0, -3, 1)\nreached('add_key', b'user', b'x', b'y', 1, -3)"), "any"),
    Attack("S08", "enter a namespace", py("reached('setns', 0, 0)"), "any"),
    Attack("S09", "load a kernel or a module", py(
        "reached('kexec_load', 0, 0, 0, 0)\nreached('init_module', 0, 0, b'')\nreached('finit_module', -1, b'', 0)\nreached('delete_module', b'nosuchmodule', 0)")),
    Attack("S10", "reboot (with a wrong magic)", py("reached('reboot', 0, 0, 0, 0)"), "root"),
    Attack("S11", "steal a descriptor", py("reached('pidfd_getfd', -1, 0, 0)"), "any"),
    Attack("S12", "the new mount calls", py(
        "reached('fsopen', b'tmpfs', 0)\nreached('open_tree', -100, b'/', 1)\nreached('move_mount', -1, b'', -1, b'', 0)\nreached('mount_setattr', -1, b'', 0, 0, 0)"), "root"),
    Attack("S13", "file handles", py("reached('name_to_handle_at', -100, b'/', ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0)"), "any"),
    Attack("S14", "pivot, unmount, swap, accounting, quota", py(
        "reached('pivot_root', b'/nosuch', b'/nosuch')\nreached('umount2', b'/nosuch', 0)\nreached('swapon', b'/nosuch', 0)\nreached('acct', b'/nosuch')\nreached('quotactl', 0, 0, 0, 0)"), "root"),
    Attack("S15", "type into the terminal", py(
        "import fcntl\nfor n in ('/dev/tty', '/proc/self/fd/0', '/dev/console', '/dev/tty0'):\n"
        "  try: f = os.open(n, os.O_RDWR); fcntl.ioctl(f, 0x5412, b'x'); escaped(n)\n  except OSError: pass\n"
        "r = call('ioctl', 1, 0x5412, b'x')\nif r == -errno.ENOTTY: escaped('reached')"), "any"),
    Attack("S16", "the clock", py(
        "reached('settimeofday', 0, 0)\nreached('clock_settime', -1, 0)\nreached('clock_adjtime', -1, 0)"), "root"),
    Attack("S17", "the host's name", py("reached('sethostname', 0, 1)\nreached('setdomainname', 0, 1)"), "root"),
    Attack("S18", "compare and watch processes", py("reached('kcmp', os.getpid(), os.getpid(), 0, 0, 0)\nreached('fanotify_init', 0, 0)"), "any"),
    Attack("S19", "memory policy and page moves", py("reached('move_pages', 1, 0, 0, 0, 0, 0)\nreached('mbind', 0, 0, 0, 0, 0, 0)"), "any"),
    Attack("S20", "clone3, whose flags no filter can read", py("reached('clone3', ctypes.create_string_buffer(8), 8)"), "any"),
    Attack("S21", "kernel log by system call", py("reached('syslog', 10, 0, 0)"), "root"),
    Attack("S22", "list mounts", py("reached('statmount', 0, 0, 0, 0)\nreached('listmount', 0, 0, 0, 0)"), "any"),
    Attack("S23", "regain capabilities", py(
        "h = struct.pack('<Ii', 0x20080522, 0); d = struct.pack('<IIIIII', *[0xffffffff] * 6)\n"
        "if libc.capset(h, d) == 0: escaped()\n"
        "t = open('/proc/self/status').read() if os.path.exists('/proc/self/status') else ''\n"
        "if t and int(t.split('CapEff:')[1].split()[0], 16): escaped('CapEff')"), "root"),
    Attack("S24", "become root", py("for f in (os.setuid, os.setgid):\n  try: f(0); escaped()\n  except OSError: pass"), "root"),
    Attack("S25", "System V semaphores and queues, shared with others", py("reached('semget', 0, 1, 0o1600)\nreached('msgget', 0, 0o1600)"), "any"),
    Attack("S26", "advise another process's memory", py("reached('process_madvise', -1, 0, 0, 0, 0)"), "any"),
]  # fmt: skip

ATTACKS = NETWORK + KERNEL
