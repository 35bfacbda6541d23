"""What the kernel gives for keeping foreign code in: namespaces, a read-only view of the files, no privileges, limits.

Everything here degrades: `enter` says what it got. System calls go through ctypes, for `os.unshare` is as young as
Python 3.12.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

NAMESPACE_FLAGS = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000}
CANDIDATES: tuple[tuple[str, ...], ...] = (
    ("user", "mount", "pid", "net", "ipc"),
    ("mount", "pid", "net", "ipc"),
    ("user", "net", "ipc"),
    ("net", "ipc"),
    (),
)
"""Sets of namespaces to try, best first."""

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
_SYS_MOUNT_SETATTR = 442  # The same number on every architecture.
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
_LARGEST_LIMIT = 1 << 62
_IS_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(names: Sequence[str]) -> None:
    """Moves this process into new namespaces; into a new process namespace only its next child moves.

    Raises:
        OSError: The kernel refuses.
    """
    if not names:
        return
    if not _IS_LINUX:
        raise OSError(errno.ENOSYS, "namespaces are Linux only")
    uid, gid = os.geteuid(), os.getegid()
    flags = 0
    for name in names:
        flags |= NAMESPACE_FLAGS[name]
    _check(_libc.unshare(flags))
    if "user" in names:
        with contextlib.suppress(FileNotFoundError):
            _write_file("/proc/self/setgroups", "deny")
        _write_file("/proc/self/uid_map", f"{uid} {uid} 1")
        _write_file("/proc/self/gid_map", f"{gid} {gid} 1")


def mount_private_folder(path: str, size_bytes: int, hidden: Sequence[str] = ()) -> None:
    """Gives this mount namespace a read-only view of everything but a fresh file system at ``path``.

    Its subfolder ``files`` is what everyone else sees at ``path``; this process stays above it, so that what lies beside
    ``files`` is out of their reach. For the first process of a new process namespace only, as it also mounts ``/proc``.

    Args:
        path: An existing folder.
        size_bytes: The most that the new file system may hold.
        hidden: Folders that are made to look empty.

    Raises:
        OSError: The kernel refuses.
    """
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    _check(
        _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(b"/"),
            ctypes.c_uint(_AT_RECURSIVE),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        )
    )
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if os.path.isdir("/dev/shm"):
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes},mode=1777")
    for folder in hidden:
        _mount("tmpfs", folder, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "size=4k,mode=0555")
    _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes},mode=0700")
    os.chdir(path)
    os.mkdir("files", 0o700)
    _mount("files", path, None, _MS_BIND)


def raise_loopback() -> None:
    """Switches the loopback device of a new network namespace on; there is no other device in it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def become_subreaper() -> None:
    """Makes orphaned descendants come back to this process; does nothing where there is no such thing."""
    if _IS_LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_traceable(traceable: bool) -> None:
    """Says whether processes of the same user may look into this one."""
    if _IS_LINUX:
        _libc.prctl(_PR_SET_DUMPABLE, int(traceable), 0, 0, 0)


def drop_privileges() -> None:
    """Gives up every capability, for good and for all programs started later."""
    if not _IS_LINUX:
        return
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _libc.capset(header, (ctypes.c_uint32 * 6)())


def prefer_for_oom_kill() -> None:
    """Makes this process and its children the first to go when the machine runs out of memory."""
    with contextlib.suppress(OSError):
        _write_file("/proc/self/oom_score_adj", "1000")


def apply_limits(limits: dict[str, Any], base_bytes: int, count_processes: bool, final: bool) -> None:
    """Sets this process's limits from the fields of ``Limits``.

    Args:
        limits: The fields.
        base_bytes: Private memory of the warm interpreter, which comes on top.
        count_processes: Whether the kernel counts processes for this session alone.
        final: Set hard limits as well; without, the next cell of a session may have larger ones.
    """
    memory = base_bytes + int(limits["memory_mb"]) * (1 << 20)
    wanted = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_FSIZE: int(limits["file_mb"]) * (1 << 20),
        resource.RLIMIT_NOFILE: 512,
    }
    if count_processes:
        wanted[resource.RLIMIT_NPROC] = int(limits["processes"]) + 2  # The keeper and the waiting interpreter.
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = min(value, _LARGEST_LIMIT)
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (soft, soft if final else hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def counts_processes(namespaces: Sequence[str]) -> bool:
    """Whether the kernel counts a session's processes apart from the user's others; it never counts those of root."""
    return "user" in namespaces and os.geteuid() != 0


def lift_limits() -> None:
    """Raises the soft limits of `apply_limits` again, so that the sandbox itself can finish what it does in a process."""
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (hard, hard))


def _mount(source: str, target: str, kind: Any, flags: int, options: str = "") -> None:
    _check(
        _libc.mount(
            source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
        )
    )


def _write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
