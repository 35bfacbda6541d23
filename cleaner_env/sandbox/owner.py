"""Says whose a container is, so that those of dead owners can be told and removed."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Owner"]


@dataclass(frozen=True)
class Owner:
    """A process: the machine and process namespace that its number counts in, the number, and when it started.

    Example:
        >>> Owner.parse(str(Owner.this_process())) == Owner.this_process()
        True
    """

    host: str
    pid: int
    started: str

    @staticmethod
    def this_process() -> Owner:
        """The process that asks."""
        return Owner(_host(), os.getpid(), _start_of(os.getpid()))

    @staticmethod
    def parse(text: str) -> Owner | None:
        """Reads what ``str()`` wrote; ``None`` for anything else."""
        host, _, rest = text.rpartition("/")
        pid, _, started = rest.partition(":")
        return Owner(host, int(pid), started) if host and pid.isdigit() else None

    def is_dead(self) -> bool:
        """Whether the process is known to have ended; of processes elsewhere nothing is known."""
        return self.host == _host() and _start_of(self.pid) != self.started

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}:{self.started}"


def _host() -> str:
    """The machine, since its last start, and the process namespace where there are such."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's count; "" where it has ended, and "alive" where there is no count."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
