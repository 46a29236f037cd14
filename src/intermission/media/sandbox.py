"""The rights that a child gives up before it reads untrusted media.

Linux only, by system call numbers, without privileges: resource limits, death with the parent,
Landlock (no file can be opened, no TCP port reached) and a seccomp filter (no socket, no new
program or process, no signal to others, no other scheduling). What the kernel lacks is left out and
reported, never pretended; the other controls still stand. Nothing here can be undone by the process
that called it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many file system rights each version of Landlock knows; from version 5 on, 16."""

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # refuse: the call fails with EPERM
_NOT_THERE = 0x00050000 | 38  # with ENOSYS, as on a kernel without the call
_X32_CALLS = 0x40000000
_CLONE_THREAD = 0x10000
_CLONE3 = 435


class _Machine(NamedTuple):
    """The numbers of system calls on a kind of machine."""

    architecture: int
    clone: int
    tgkill: int
    refused: tuple[int, ...]


_MACHINES = {
    # socket, connect, bind, execve, execveat, ptrace, process_vm_readv, process_vm_writev,
    # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, io_uring_setup (which
    # can do all of these unseen), sched_setparam, sched_setscheduler, sched_setattr (SVT-AV1 run
    # by root makes itself a realtime process, and starves whoever renews the lease); fork and
    # vfork, where they are calls of their own
    "x86_64": _Machine(
        0xC000003E,
        clone=56,
        tgkill=234,
        refused=(
            *(41, 42, 49, 59, 322, 101, 310, 311, 62, 200, 129, 297, 424, 425, 142, 144, 314),
            *(57, 58),
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        clone=220,
        tgkill=131,
        refused=(
            *(198, 203, 200, 221, 281, 117, 270, 271, 129, 130, 138, 240, 424, 425, 118, 119, 274),
        ),
    ),
}

_libc = ctypes.CDLL(None, use_errno=True)

CONTROLS = ("landlock", "seccomp")
UNPROTECTED_REMEDY = (
    "Run it on Linux 5.13 or newer with Landlock and seccomp, or set media_sandbox to best-effort."
)


def die_with(parent_pid: int) -> None:
    """Be killed when the thread that started this process ends; end now if it is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit(*, memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Cap what this process may use. A lower limit that is there already stays."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, 32)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    _lower(resource.RLIMIT_AS, memory_bytes)
    # One second apart: the first ends the process with a signal that names the reason.
    _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)


def _lower(what: int, soft: int, hard: int | None = None) -> None:
    _, old = resource.getrlimit(what)
    ceiling = old if old != resource.RLIM_INFINITY else max(soft, hard or soft)
    resource.setrlimit(what, (min(soft, ceiling), min(hard or soft, ceiling)))


def lock_in() -> list[str]:
    """Give up files, network and new programs for good; the controls this kernel offered."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    controls = {"landlock": _landlock(), "seccomp": _seccomp()}
    return [name for name, holds in controls.items() if holds]


def missing_controls() -> list[str]:
    """Which controls this machine lacks, found without giving anything up."""
    has = {"landlock": landlock_version() > 0, "seccomp": _has_seccomp()}
    return [name for name in CONTROLS if not has[name]]


def lacking(missing: Sequence[str]) -> str:
    """What a machine without these controls lacks, within a sentence."""
    names = {"landlock": "Landlock", "seccomp": "seccomp filter"}
    return f"this machine has no {' and no '.join(names.get(name, name) for name in missing)}"


def _has_seccomp() -> bool:
    # A kernel that takes filters looks for one at the address, and finds that there is none.
    asked = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    is_known = platform.machine() in _MACHINES
    return is_known and asked == -1 and ctypes.get_errno() == errno.EFAULT


def landlock_version() -> int:
    """Which version of Landlock this kernel has; zero for none."""
    return max(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1), 0)


def _landlock() -> bool:
    version = landlock_version()
    if not version:
        return False
    files = (1 << _LANDLOCK_FS_BITS.get(version, 16)) - 1
    network = 3 if version >= 4 else 0  # bind and connect of TCP
    scope = 3 if version >= 6 else 0  # abstract sockets and signals of others
    rules = struct.pack("=QQQ", files, network, scope)
    fd = _libc.syscall(_LANDLOCK_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    if fd < 0:
        return False
    restricted = _libc.syscall(_LANDLOCK_RESTRICT_SELF, fd, 0) == 0
    os.close(fd)
    return restricted


def _seccomp() -> bool:
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    code = _filter(machine)
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    return _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) == 0


def _filter(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """The instructions of the filter: each with how many to skip if it is so, and if not."""
    load, equals, at_least, has_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    first_argument = (load, 0, 0, 16)
    code = [
        (load, 0, 0, 4),  # the architecture
        (equals, 1, 0, machine.architecture),
        (answer, 0, 0, _REFUSE),
        (load, 0, 0, 0),  # the number of the call
        (at_least, 0, 1, _X32_CALLS),
        (answer, 0, 0, _REFUSE),
    ]
    for call in machine.refused:
        code += [(equals, 0, 1, call), (answer, 0, 0, _REFUSE)]
    # Its flags are in memory, which a filter cannot read. Without it, libc uses clone.
    code += [(equals, 0, 1, _CLONE3), (answer, 0, 0, _NOT_THERE)]
    only_if = [(answer, 0, 0, _REFUSE), (answer, 0, 0, _ALLOW)]
    new_thread = (has_bits, 1, 0, _CLONE_THREAD)
    code += [(equals, 0, 4, machine.clone), first_argument, new_thread, *only_if]
    # A process may signal itself: so it aborts, and the reason is known.
    own_process = (equals, 1, 0, os.getpid())
    code += [(equals, 0, 4, machine.tgkill), first_argument, own_process, *only_if]
    return [*code, (answer, 0, 0, _ALLOW)]
