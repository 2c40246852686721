# SPDX-License-Identifier: AGPL-3.0-or-later
"""Attacks on what is on disk: reading secrets, changing what is outside, leaving traps."""

# ruff: noqa: E501

from __future__ import annotations

from world import Attack, py, sh


def harmed(world, result):
    return not world.unharmed or b"ESCAPED" in result.stdout


READ = [
    Attack("R01", "a key by its absolute path", sh("cat <secret>"), "any"),
    Attack("R02", "/etc/shadow", sh("grep -q . /etc/shadow && echo ESCAPED"), "root"),
    Attack("R03", "secrets in the environment", sh("env"), "any"),
    Attack("R04", "environment of init and parent", sh("cat /proc/1/environ /proc/$PPID/environ /proc/self/environ"), "any"),
    Attack("R05", "environment of every process", sh("cat /proc/[0-9]*/environ"), "any"),
    Attack("R06", "through other processes' roots", sh("for p in /proc/[0-9]*; do cat $p/root<secret> $p/cwd<secret>; done"), "any"),
    Attack("R07", "by a symbolic link", sh("ln -s <secret> l; cat l; ln -s / r; cat r<secret>"), "any"),
    Attack("R08", "by a hard link", sh("ln <secret> h; cat h"), "any"),
    Attack("R09", "by dots", sh("cat ../../../../../../../../..<secret>"), "any"),
    Attack("R10", "out of a chroot", py("os.mkdir('c')\nif call('chroot', b'c') == 0: escaped()"), "root"),
    Attack("R11", "by file handle", py("reached('open_by_handle_at', -100, ctypes.create_string_buffer(64), 0)"), "root"),
    Attack("R12", "by inherited descriptors", py(
        "for n in range(3, 512):\n  try: os.fstat(n)\n  except OSError: continue\n"
        "  escaped(n, os.readlink(f'/proc/self/fd/{n}') if os.path.exists('/proc/self/fd') else '')")),
    Attack("R13", "kernel log and raw devices", sh(
        "dmesg 2>/dev/null | grep -q . && echo ESCAPED; head -c1 /dev/mem /dev/vda /dev/sda /dev/kmsg /dev/nvme0n1 2>/dev/null | grep -q . && echo ESCAPED"), "root"),
    Attack("R14", "the host's process list", sh("test -e /proc/<victim> && echo ESCAPED"), "any"),
    Attack("R15", "memory of the victim", sh("head -c1 /proc/<victim>/maps && echo ESCAPED"), "any"),
    Attack("R16", "listing the home folder", sh("ls <home> && echo ESCAPED"), "any"),
    Attack("R17", "the package with the gold solutions", py(
        "for p in ('<package>',):\n  try: os.listdir(p); escaped(p)\n  except OSError: pass"), "any"),
    Attack("R18", "shell history and cloud keys in /root and /home", sh(
        "cat /root/.bash_history /root/.ssh/* /home/*/.bash_history /home/*/.aws/credentials 2>/dev/null | grep -q . && echo ESCAPED; ls /home/*/.* >/dev/null 2>&1 && echo ESCAPED; true")),
    Attack("R19", "sockets and state in /run and /var", sh("ls /run /var/lib /var/log 2>/dev/null | grep -q . && echo ESCAPED; true"), "any"),
    Attack("R20", "kernel settings in /sys", sh("cat /sys/kernel/uevent_seqnum /sys/class/dmi/id/* /sys/fs/cgroup/memory/tasks 2>/dev/null | grep -q . && echo ESCAPED; true"), "any"),
    Attack("R21", "host name", sh("[ \"$(cat /proc/sys/kernel/hostname 2>/dev/null)\" = \"<hostname>\" ] && echo ESCAPED; true"), "any"),
]  # fmt: skip

WRITE = [
    Attack("W01", "overwrite by absolute path", sh("echo bad > <target>"), "any", harmed),
    Attack("W02", "overwrite through links", sh("ln -s <target> l; echo bad > l; ln -s <home> d; echo x > d/new"), "any", harmed),
    Attack("W03", "system files and kernel settings", sh(
        "for f in /usr/x /etc/x /bin/x /lib/x /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do : >> $f && echo ESCAPED; done 2>/dev/null; rm -f /usr/x /etc/x /bin/x /lib/x"), "root"),
    Attack("W04", "make device nodes", py(
        "for mode, dev in ((0o20666, os.makedev(1, 1)), (0o60666, os.makedev(254, 0))):\n"
        "  try: os.mknod('dev', mode, dev); escaped(); os.unlink('dev')\n  except OSError: pass"), "root"),
    Attack("W05", "mount something", py("reached('mount', b'none', b'/tmp', b'nosuchfs', 0, 0)"), "root"),
    Attack("W06", "set-uid copy of a shell", sh(
        "cp /bin/bash b; chmod 4755 b; ./b -p -c 'id -u' | grep -qx 0 && echo ESCAPED; chown 0:0 b 2>/dev/null && echo ESCAPED; rm -f b"), "root"),
    Attack("W07", "move over and delete", sh("echo bad > z; mv z <target>; rm -rf <target> <home>/new"), "any", harmed),
    Attack("W08", "new file beside the target", sh("touch <home>/new"), "any", harmed),
    Attack("W09", "change mode, times and owner", sh("chmod 777 <target> 2>/dev/null && echo ESCAPED; touch <target> && echo ESCAPED"), "any"),
    Attack("W10", "truncate without opening", py(
        "try: os.truncate('<target>', 0); escaped()\nexcept OSError: pass"), "any", harmed),
    Attack("W11", "rename a folder away", sh("mv <home>/.ssh <home>/gone && echo ESCAPED && mv <home>/gone <home>/.ssh"), "any"),
    Attack("W12", "extended attributes outside", py(
        "try: os.setxattr('<target>', 'user.x', b'1'); escaped()\nexcept OSError: pass"), "any"),
    Attack("W13", "write to devices of the host", sh("for d in /dev/vda /dev/sda /dev/mem /dev/kmsg /dev/shm/../kmsg; do : >> $d && echo ESCAPED; done 2>/dev/null; true"), "root"),
    Attack("W14", "leave something in /tmp of the host", sh("touch /tmp/rusty-left-<me>"), "any",
           lambda world, result: _left(f"/tmp/rusty-left-{__import__('os').getpid()}")),
    Attack("W15", "leave something in /dev/shm of the host", sh("touch /dev/shm/rusty-left-<me>"), "any",
           lambda world, result: _left(f"/dev/shm/rusty-left-{__import__('os').getpid()}")),
    Attack("W16", "remount root writable", sh("mount -o remount,rw / 2>/dev/null && echo ESCAPED; umount /proc 2>/dev/null && echo ESCAPED; true")),
]  # fmt: skip


def _left(path):
    from pathlib import Path

    found = Path(path).exists()
    Path(path).unlink(missing_ok=True)
    return found


ATTACKS = READ + WRITE
