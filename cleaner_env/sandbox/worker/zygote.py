"""The warm process: imports once, then forks a keeper for each session that the host asks for."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import random  # noqa: F401 - for the sessions, which seed it
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from . import files, frames, isolation, keeper, processes, restrictions

_FILES_BYTES = 320 << 20  # Five times what the tree may hold: room for copies old and new, and for what a cell writes.


def main(arguments: list[str]) -> NoReturn:
    """Runs the zygote.

    Args:
        arguments: The descriptor of the Unix socket to the host, and a JSON object with ``preload`` (names of modules to
            import where they are installed), ``folder`` (an own, empty folder for the sessions' files), ``hidden``
            (folders that the sessions shall not see) and ``namespaces`` (those to try, ``null`` for the best to be had).
    """
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    options = json.loads(arguments[1])
    for name in [name for name in sys.modules if name == "worker" or name.startswith("worker.")]:
        del sys.modules[name]  # The name is free for the cells' own modules.
    isolation.become_subreaper()
    zygote = Zygote(control, **options)
    frames.send(control, zygote.describe())
    zygote.serve()


class Zygote:
    """Forks keepers, and clears away what a dead one leaves."""

    def __init__(
        self,
        control: socket.socket,
        folder: str,
        preload: list[str],
        hidden: list[str],
        namespaces: list[str] | None,
    ) -> None:
        self.control = control
        self.folder = folder
        self.preloaded = preload_modules(preload)
        self.hidden = hidden
        wanted = isolation.CANDIDATES if namespaces is None else (tuple(namespaces), ())
        self.namespaces = _first_available(wanted, folder, hidden)
        self.keepers: dict[int, str] = {}
        self.sessions = 0
        self.own_folder = ""
        if "mount" not in self.namespaces:
            _sweep(folder)
            self.own_folder = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}")
            os.mkdir(self.own_folder, 0o700)
            self.lock = _lock(self.own_folder)  # Held for as long as this process or a keeper lives.
        gc.collect()
        gc.freeze()
        used = processes.usage(os.getpid())
        self.base_bytes = used.data_bytes if used else 0

    def describe(self) -> frames.Message:
        """Says what this process has and got."""
        return {
            "python": sys.version.split()[0],
            "namespaces": list(self.namespaces),
            "preload": self.preloaded,
            "base_bytes": self.base_bytes,
            "restricts_calls": _can_restrict_calls(),
            "counts_processes": isolation.counts_processes(self.namespaces),
        }

    def serve(self) -> NoReturn:
        """Forks a keeper for each socket that comes, until the host hangs up."""
        while True:
            if not select.select([self.control], [], [], 1.0)[0]:
                self._clear_away()
                continue
            try:
                _, fds = frames.receive(self.control, max_fds=1)
            except (EOFError, OSError, frames.FrameError):
                break
            self._open(fds[0])
            self._clear_away()
        if self.own_folder:
            self._wait_for_keepers()
        os._exit(0)

    def _open(self, session_fd: int) -> None:
        self.sessions += 1
        folder = os.path.join(self.own_folder, str(self.sessions)) if self.own_folder else self.folder
        pid = self._launch(session_fd, folder) if "pid" in self.namespaces else os.fork()
        if pid == 0:
            self._keep(session_fd, folder, self.namespaces)
        if pid is not None:
            self.keepers[pid] = folder
            with contextlib.suppress(OSError):
                frames.write(session_fd, {"kind": "keeper", "pid": pid})
        os.close(session_fd)

    def _launch(self, session_fd: int, folder: str) -> int | None:
        """Forks a keeper into a new process namespace, which takes a process in between; returns its number."""
        reading, writing = os.pipe()
        launcher = os.fork()
        if launcher == 0:
            try:
                os.close(reading)
                isolation.enter_namespaces(self.namespaces)
                pid = os.fork()
                if pid == 0:
                    os.close(writing)
                    self._keep(session_fd, folder, enter=())
                os.write(writing, b"%d" % pid)
            except BaseException as error:
                _complain(session_fd, error)
            finally:
                os._exit(0)
        os.close(writing)
        pid_text = os.read(reading, 32)
        os.close(reading)
        os.waitpid(launcher, 0)
        return int(pid_text) if pid_text else None

    def _keep(self, session_fd: int, folder: str, enter: Sequence[str]) -> NoReturn:
        try:
            self.control.close()
            isolation.enter_namespaces(enter)
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # The one signal that Python handles, and that could so end it.
            os.set_inheritable(session_fd, False)
            isolation.become_subreaper()
            if self.own_folder:
                os.mkdir(folder, 0o700)
                os.mkdir(os.path.join(folder, "files"), 0o700)
                visible = os.path.join(folder, "files")
                os.chdir(folder)
            else:
                isolation.mount_private_folder(folder, _FILES_BYTES, self.hidden)
                visible = folder
            if "net" in self.namespaces:
                isolation.raise_loopback()
            isolation.set_traceable(False)
            session = keeper.Keeper(session_fd, session_fd, visible, self.base_bytes, list(self.namespaces))
            frames.write(session_fd, {"kind": "ready", "folder": visible})
            session.serve()
        except BaseException as error:
            _complain(session_fd, error)
        finally:
            os._exit(1)

    def _wait_for_keepers(self) -> None:
        """Stays until the keepers, which have lost the host too, are done, to remove what is left of them."""
        while self.keepers:
            time.sleep(0.02)
            self._clear_away()
        files.remove_tree(self.own_folder)

    def _clear_away(self) -> None:
        """Reaps dead keepers, kills whom they left behind, and removes their folders."""
        ended = [pid for pid in self.keepers if _has_ended(pid)]
        folders = [self.keepers.pop(pid) for pid in ended]
        if folders and self.own_folder:
            processes.kill_descendants(spare=self.keepers)
            for folder in folders:
                files.remove_tree(folder)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:  # Reaped along with others.
        return True


def preload_modules(names: list[str]) -> list[str]:
    """Imports the modules that are installed; returns their names."""
    loaded = []
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    return loaded


def _first_available(wanted: Sequence[Sequence[str]], folder: str, hidden: Sequence[str]) -> list[str]:
    """Returns the first set of namespaces that this kernel gives to this user, found by trying."""
    for names in wanted:
        launcher = os.fork()
        if launcher == 0:
            code = 1
            try:
                isolation.enter_namespaces(names)
                pid = os.fork()
                if pid == 0:
                    if "mount" in names:
                        isolation.mount_private_folder(folder, 1 << 20, hidden)
                    os._exit(0)
                code = os.waitpid(pid, 0)[1]
            finally:
                os._exit(1 if code else 0)
        if os.waitpid(launcher, 0)[1] == 0:
            return list(names)
    return []


def _can_restrict_calls() -> bool:
    child = os.fork()
    if child == 0:
        isolation.drop_privileges()
        os._exit(0 if restrictions.forbid_system_calls(restrictions.LOCAL_FAMILIES) else 1)
    return os.waitpid(child, 0)[1] == 0


def _complain(session_fd: int, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        frames.write(session_fd, {"kind": "error", "message": f"{type(error).__name__}: {error}"})


def _lock(folder: str) -> int | None:
    """Locks a folder; returns the descriptor that holds the lock, ``None`` where another process has it."""
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _sweep(folder: str) -> None:
    """Removes the folders of hosts that are gone."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                files.remove_tree(path)
                os.close(lock)
