"""The sandbox without a daemon: the worker as a child of this process, in what namespaces the kernel gives."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox.asynchronous import in_thread
from cleaner_env.sandbox.channel import Channel
from cleaner_env.sandbox.client import Zygote
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import infrastructure_error
from cleaner_env.sandbox.session import ReplayedSession
from cleaner_env.sandbox.worker.isolation import NAMESPACE_FLAGS

__all__ = ["LocalSandbox", "LocalSession"]


class LocalSandbox:
    """Runs code in processes of this machine.

    Code is kept in by rlimits and, where the kernel allows, by namespaces: no network, a read-only view of all files but
    the session's own, its own process table. `describe` says what was got. It is no security boundary against a
    determined attacker; what the user running it may read, the code may read.

    What cannot be rolled back: bytes taken out of a pipe or a socket that an earlier cell made, memory shared between
    processes, and, without a mount namespace, files outside the working folder. Threads and child processes end with
    their cell.

    Args:
        preload: Modules that the warm interpreter imports, where installed, so that sessions have them at no cost.
        limits: The default limits of a cell or script.
        python: The interpreter to run, CPython 3.8 or later; default this process's own.
        namespaces: The namespaces to put sessions in, of ``user``, ``mount``, ``pid``, ``net`` and ``ipc``; default the
            best set that the kernel gives. Where it refuses the given ones, none are used.

    Raises:
        ConfigError: An option has the wrong type.
    """

    name = "local"

    def __init__(
        self,
        preload: Sequence[str] = (),
        limits: Limits | None = None,
        python: str | os.PathLike[str] | None = None,
        namespaces: Sequence[str] | None = None,
    ) -> None:
        if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
            raise ConfigError(f"preload must be a sequence of module names, got {preload!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise ConfigError(f"limits must be a Limits, got {limits!r}")
        self.preload = tuple(preload)
        self.limits = limits or Limits()
        self.python = os.fspath(python or sys.executable)
        self.namespaces = _checked_namespaces(namespaces)
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        self._closed = False
        _sandboxes.add(self)

    def open(self) -> LocalSession:
        """Opens a fresh session; starts the warm interpreter if there is none.

        Raises:
            SandboxError: It cannot be started, or the sandbox is closed.
        """
        session = LocalSession(self)
        with self._lock:
            self._sessions.add(session)
        return session

    async def aopen(self) -> LocalSession:
        """Opens a fresh session without blocking the event loop; raises as `open` does."""
        return await in_thread(self.open)

    def run_script(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a program as ``python main.py`` in a fresh process and an empty folder, to its end."""
        try:
            with self.open() as session:
                return session._run(code, stdin, limits, script=True)
        except SandboxError as error:
            return infrastructure_error(str(error))

    def describe(self) -> Mapping[str, object]:
        """Says what this sandbox is and which protections it got; starts the warm interpreter to find out.

        Raises:
            SandboxError: It cannot be started, or the sandbox is closed.
        """
        facts = self._living_zygote().facts
        namespaces = tuple(str(name) for name in facts["namespaces"])
        return {
            "backend": self.name,
            "python": str(facts["python"]),
            "namespaces": namespaces,
            "network": "closed" if "net" in namespaces else "open",
            "filesystem": "read-only outside the session's folder" if "mount" in namespaces else "as the user's",
            "system_calls": "restricted" if facts["restricts_calls"] else "all",
            "rlimits": ("data", "file_size", "open_files", "core", *(("processes",) if facts["counts_processes"] else ())),
            "preload": tuple(str(name) for name in facts["preload"]),
            "security_boundary": False,
        }

    def close(self) -> None:
        with self._lock:
            self._closed = True
            zygote, self._zygote = self._zygote, None
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        if zygote is not None:
            zygote.close()

    def __enter__(self) -> LocalSandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _forget_processes(self) -> None:
        """In a forked child: what runs is the parent's. Sessions start anew, and replay their cells, when next used."""
        self._lock = threading.Lock()
        self._zygote = None
        for session in list(self._sessions):
            session._forget_parent()

    def _living_zygote(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise SandboxError("this sandbox is closed; make a new one with make_sandbox()")
            if self._zygote is None or not self._zygote.is_alive():
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = Zygote(self.python, self.preload, self.namespaces)
                self._zygote.fork_spare()
            return self._zygote

    def _connect(self) -> Channel:
        """Has a keeper forked, and waits until its interpreter is ready; tries a second zygote if the first just died."""
        zygote = self._living_zygote()
        try:
            return zygote.fork_keeper()
        except SandboxError:
            if not zygote.wait_for_end(timeout_s=1.0):
                raise
        return self._living_zygote().fork_keeper()

    def _take_back(self, channel: Channel) -> None:
        channel.close()


class LocalSession(ReplayedSession):
    """A session of a `LocalSandbox`."""


def _checked_namespaces(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    unknown = [names] if isinstance(names, str) else [name for name in names if name not in NAMESPACE_FLAGS]
    if unknown:
        raise ConfigError(f"unknown namespace {unknown[0]!r}; give a sequence of {', '.join(NAMESPACE_FLAGS)}")
    return tuple(names)


_sandboxes: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()


def _forget_parent() -> None:
    """Runs after `client` has closed the inherited sockets, so dropping a channel here ends nothing of the parent's."""
    for sandbox in list(_sandboxes):
        sandbox._forget_processes()


os.register_at_fork(after_in_child=_forget_parent)
