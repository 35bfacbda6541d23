"""What a process can forbid itself and its children for good: system calls (seccomp), and writing to files (Landlock).

Neither needs privileges, only ``no_new_privs``. Where the kernel cannot do it nothing is forbidden; the functions say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

LOCAL_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
UNIX_ONLY = (1,)

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD_WORD, _IF_EQUAL, _IF_GREATER_OR_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # Offsets into the kernel's struct seccomp_data.
_FOREIGN_NUMBERS = 0x40000000  # Where the numbers of the x32 ABI start.
_PRIO_USER = 2
_NEW_NAMESPACES = 0x7E020000  # Every flag of clone that makes a namespace.


class _Machine:
    """The numbers of system calls on one architecture."""

    def __init__(self, audit: int, **numbers: int) -> None:
        self.audit = audit
        self.numbers = numbers


_SAME_EVERYWHERE = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, socket=41, socketpair=53, clone=56, unshare=272, setns=308, mount=165, umount2=166, pivot_root=155,
        bpf=321, perf_event_open=298, userfaultfd=323, keyctl=250, add_key=248, request_key=249, ioprio_set=251,
        open_by_handle_at=304, prlimit64=302, sched_setaffinity=203, sched_setscheduler=144, sched_setparam=142,
        sched_setattr=314, setpriority=141, **_SAME_EVERYWHERE,
    ),
    "aarch64": _Machine(
        0xC00000B7, socket=198, socketpair=199, clone=220, unshare=97, setns=268, mount=40, umount2=39, pivot_root=41,
        bpf=280, perf_event_open=241, userfaultfd=282, keyctl=219, add_key=217, request_key=218, ioprio_set=30,
        open_by_handle_at=265, prlimit64=261, sched_setaffinity=122, sched_setscheduler=119, sched_setparam=118,
        sched_setattr=274, setpriority=140, **_SAME_EVERYWHERE,
    ),
}  # fmt: skip
_REFUSED = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key",
    "request_key", "ioprio_set", "open_by_handle_at",
)  # fmt: skip
_UNKNOWN = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")  # Libraries know how to do without.
_ON_ITSELF_ONLY = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "setpriority": 1,
}  # fmt: skip
"""Calls that change another process of the same user, and which of their arguments names it; 0 is the caller."""

_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446  # Landlock's, the same on every architecture.
_WRITE_FILE, _TRUNCATE, _IOCTL_DEVICE, _REFER = 1 << 1, 1 << 14, 1 << 15, 1 << 13
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_SCOPE_SIGNAL = 1 << 1
_PATH_BENEATH = 1
_libc = ctypes.CDLL(None, use_errno=True)


def forbid_system_calls(families: Sequence[int]) -> bool:
    """Leaves out the calls that foreign code needs for nothing but mischief; says whether the kernel took the filter.

    Closed are sockets of other families, among them the one to the hypervisor (``AF_VSOCK``), which network namespaces let
    through; ``io_uring``, whose operations no filter sees; new namespaces; and changes to other processes of the same user.

    Args:
        families: The address families that sockets may have.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.platform != "linux":
        return False
    code = b"".join(_filter(machine, families))
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    return bool(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def _filter(machine: _Machine, families: Sequence[int]) -> list[bytes]:
    numbers = machine.numbers
    program = [_load(_ARCHITECTURE), _step(_IF_EQUAL, machine.audit, 1, 0), _fail(errno.ENOSYS), _load(_NUMBER)]
    program += [_step(_IF_GREATER_OR_EQUAL, _FOREIGN_NUMBERS, 0, 1), _fail(errno.ENOSYS)]
    for names, error in ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for name in names:
            program += [_step(_IF_EQUAL, numbers[name], 0, 1), _fail(error)]
    allowed = [_step(_IF_EQUAL, family, len(families) - number, 0) for number, family in enumerate(families)]
    for name in ("socket", "socketpair"):
        program += _on(numbers[name], [_load(_argument(0)), *allowed, _fail(errno.EAFNOSUPPORT)])
    program += _on(numbers["clone"], [_load(_argument(0)), _step(_IF_ANY_BIT, _NEW_NAMESPACES, 0, 1), _fail(errno.EPERM)])
    whole_user = [_load(_argument(0)), _step(_IF_EQUAL, _PRIO_USER, 0, 1), _fail(errno.EPERM)]
    for name, argument in _ON_ITSELF_ONLY.items():
        itself = [_load(_argument(argument)), _step(_IF_EQUAL, 0, 1, 0), _fail(errno.EPERM)]
        program += _on(numbers[name], itself if name != "setpriority" else whole_user + itself)
    return [*program, _step(_RETURN, _ALLOW)]


def _on(number: int, then: list[bytes]) -> list[bytes]:
    """Steps taken for one system call alone; afterwards the call's number is loaded again."""
    return [_step(_IF_EQUAL, number, 0, len(then) + 1), *then, _load(_NUMBER)]


def _load(offset: int) -> bytes:
    return _step(_LOAD_WORD, offset)


def _argument(index: int) -> int:
    low_word = 0 if sys.byteorder == "little" else 4
    return 16 + 8 * index + low_word


def _fail(error: int) -> bytes:
    return _step(_RETURN, _FAIL_WITH | error)


def _step(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, operand)


def forbid_writing_outside(folders: Sequence[str]) -> bool:
    """Makes every file read-only but those beneath some folders, and devices; says whether the kernel can do so.

    Where the kernel is young enough, processes outside are also safe from signals.
    """
    if sys.platform != "linux":
        return False
    version = _libc.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 2:  # The first cannot allow files to be moved between folders.
        return False
    files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0) | (_IOCTL_DEVICE if version >= 5 else 0)
    everything = files | _REMOVE_AND_MAKE | _REFER
    attributes = struct.pack("QQQ", everything, 0, _SCOPE_SIGNAL)
    size = 24 if version >= 6 else 8
    ruleset = _libc.syscall(_SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        allowed = [(folder, everything) for folder in folders] + [("/dev", files)]
        return all(_allow(ruleset, *rule) for rule in allowed) and not _libc.syscall(_SYS_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, folder: str, access: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", access, fd)
            return not _libc.syscall(_SYS_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)
    return True
