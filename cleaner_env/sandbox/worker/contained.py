"""The first process of a container: imports once, then keeps one session after another, all traces removed in between."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from typing import Any, NoReturn

from . import files, frames, isolation, processes, restrictions
from .keeper import Keeper
from .zygote import preload_modules

FOLDER = "/sandbox"
_NAMESPACES = ["mount", "pid", "net", "ipc"]


def main(options: dict[str, Any]) -> NoReturn:
    """Serves sessions on standard input and output until the host hangs up.

    Args:
        options: ``preload``: names of modules to import where they are installed.
    """
    host_in, host_out = _move_standard_descriptors()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    isolation.set_traceable(False)
    preloaded = preload_modules(options["preload"])
    gc.collect()
    gc.freeze()
    used = processes.usage(os.getpid())
    base_bytes = used.data_bytes if used else 0
    facts: frames.Message = {
        "kind": "facts",
        "python": sys.version.split()[0],
        "preload": preloaded,
        "base_bytes": base_bytes,
        "restrictions": _available_restrictions(),
    }
    frames.write(host_out, facts)
    os.chdir(FOLDER)
    try:
        while True:
            visible = os.path.join(FOLDER, "files")
            session = Keeper(host_in, host_out, visible, base_bytes, _NAMESPACES, in_container=True)
            frames.write(host_out, {"kind": "ready"})
            session.answer_commands()
            session.let_go()
            if not processes.kill_descendants() or not _wipe(FOLDER) or not _wipe("/dev/shm"):
                break
    finally:
        os._exit(1)  # Which ends every other process in the container.


def _move_standard_descriptors() -> tuple[int, int]:
    """Moves them out of reach of the sessions' processes, which close all above two."""
    host_in, host_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (0, 1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)
    return host_in, host_out


def _wipe(folder: str) -> bool:
    """Empties a folder; says whether it is empty now."""
    if not os.path.isdir(folder):
        return True
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            files.remove_tree(path)
        else:
            os.unlink(path)
    return not os.listdir(folder)


def _available_restrictions() -> list[str]:
    """Tries in a child what this kernel allows a process to forbid itself."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        isolation.drop_privileges()
        found = [
            name
            for name, works in (
                ("system_calls", restrictions.forbid_system_calls(restrictions.UNIX_ONLY)),
                ("writes", restrictions.forbid_writing_outside([FOLDER])),
            )
            if works
        ]
        os.write(writing, " ".join(found).encode())
        os._exit(0)
    os.close(writing)
    text = os.read(reading, 100).decode()
    os.close(reading)
    os.wait()
    return text.split()
