"""Finds, measures and kills what descends from this process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EXITING, _SIGNALED = 0x4, 0x400  # The kernel's PF_EXITING and PF_SIGNALED.
_CGROUP_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # Of version 2 and 1.
HAS_PROC = os.path.exists("/proc/self/stat")
_HAS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Usage(NamedTuple):
    """What one process uses.

    Attributes:
        cpu_s: Seconds of processor time.
        data_bytes: Bytes of private writable memory, resident or not: what ``RLIMIT_DATA`` counts.
        threads: Threads alive.
    """

    cpu_s: float
    data_bytes: int
    threads: int


def descendants(root: int, spare: Collection[int] = ()) -> list[int]:
    """Returns the living processes below ``root``, without zombies, and without those in ``spare`` and what is below them.

    There are none where there is no ``/proc``.
    """
    if not HAS_PROC:
        return []
    children = _read_children if _HAS_CHILDREN else _ScannedChildren()
    found: list[int] = []
    pending = [root]
    while pending:
        for pid in children(pending.pop()):
            if pid in spare:
                continue
            pending.append(pid)
            if not _is_zombie(pid):
                found.append(pid)
    return found


def usage(pid: int) -> Usage | None:
    """Measures a process; ``None`` where it is gone."""
    try:
        fields = _stat_fields(pid)
        with open(f"/proc/{pid}/statm", "rb") as file:
            data_pages = int(file.read().split()[5])
    except (OSError, IndexError, ValueError):
        return None
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, data_pages * _PAGE, int(fields[17]))


def kill_descendants(
    keep: Collection[int] = (), spare: Collection[int] = (), also: Collection[int] = (), patience_s: float = 5.0
) -> bool:
    """Kills every descendant of this process, and reaps it.

    This process must be a subreaper, or the first of its process
    namespace, so that those who lost their parent come back to it.

    Args:
        keep: Processes to leave alone; what is below them is killed.
        spare: Processes to leave alone with all that is below them.
        also: Processes known from elsewhere, killed with their process groups where there is no ``/proc`` to search.
        patience_s: Seconds to go on for.

    Returns:
        Whether all are gone.
    """
    give_up = time.monotonic() + patience_s
    if not HAS_PROC:
        for pid in also:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
    stopped = False
    while True:
        reap()
        victims = [pid for pid in descendants(os.getpid(), spare) if pid not in keep]
        if not victims or time.monotonic() > give_up:
            if stopped:
                _signal_all(keep, signal.SIGCONT)
            return not victims
        _signal_all(victims, signal.SIGKILL)
        if os.getpid() == 1 and not spare:  # Of a process namespace: minus one then means all others in it, at one stroke.
            stopped = True
            _signal_all([-1], signal.SIGSTOP)  # Those that fork as fast as they are killed hold still now.
        time.sleep(0.0002)


def _signal_all(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap() -> list[int]:
    """Collects the dead children of this process, without waiting."""
    reaped = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            reaped.append(pid)
    return reaped


def is_doomed(pid: int) -> bool:
    """Whether a process is dead or has been dealt a deadly signal, even if it has not got round to dying."""
    if not HAS_PROC:
        return False
    try:
        fields = _stat_fields(pid)
    except OSError:
        return True
    dying = int(fields[6]) & (_EXITING | _SIGNALED)
    return fields[0] in (b"Z", b"X") or bool(dying) or bool(int(fields[28]) & (1 << (signal.SIGKILL - 1)))


def count_threads() -> int:
    """Returns how many threads this process has, those unknown to Python included where the system tells."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading

        return threading.active_count()


def kernel_oom_kills(in_container: bool = False) -> int:
    """Returns how many processes the kernel has killed for want of memory: in this container, or since it started."""
    for path in (*(_CGROUP_COUNTERS if in_container else ()), "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    return 0


def _stat_fields(pid: int) -> list[bytes]:
    """Returns the fields of ``/proc/PID/stat`` after the command name, which may hold any byte."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _is_zombie(pid: int) -> bool:
    try:
        return _stat_fields(pid)[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _read_children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


class _ScannedChildren:
    """Children by a scan of all processes, for kernels that list none."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    self._children.setdefault(int(_stat_fields(int(name))[1]), []).append(int(name))

    def __call__(self, pid: int) -> Iterator[int]:
        return iter(self._children.get(pid, ()))
