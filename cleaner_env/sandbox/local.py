"""The sandbox without a daemon: the worker as a child of this process, in what namespaces the kernel gives."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import execution_from_reply, infrastructure_error
from cleaner_env.sandbox.worker import frames
from cleaner_env.sandbox.worker.isolation import NAMESPACE_FLAGS

__all__ = ["LocalSandbox", "LocalSession"]

_START_TIMEOUT_S = 60.0
_REPLY_GRACE_S = 10.0
_LAUNCH = "import sys; sys.path[:1] = [sys.argv[1]]; from worker.zygote import main; del sys.path[0]; main(sys.argv[2:])"
_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


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
        self._zygote: _Zygote | None = None
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        self._closed = False
        _sandboxes.add(self)

    def open(self) -> LocalSession:
        """Opens a fresh session; starts the warm interpreter if there is none.

        Raises:
            SandboxError: It cannot be started, or the sandbox is closed.
        """
        session = LocalSession(self)
        self._sessions.add(session)
        return session

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
            "rlimits": ("data", "file_size", "open_files", "core", *(("processes",) if facts["counts_processes"] else ())),
            "preload": tuple(str(name) for name in facts["preload"]),
            "security_boundary": False,
        }

    def close(self) -> None:
        with self._lock:
            self._closed = True
            zygote, self._zygote = self._zygote, None
        for session in list(self._sessions):
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
            session._channel = None

    def _living_zygote(self) -> _Zygote:
        with self._lock:
            if self._closed:
                raise SandboxError("this sandbox is closed; make a new one with make_sandbox()")
            if self._zygote is None or not self._zygote.is_alive():
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = _Zygote(self.python, self.preload, self.namespaces)
            return self._zygote

    def _connect(self) -> _Channel:
        """Has a keeper forked, and waits until its interpreter is ready; tries a second zygote if the first just died."""
        zygote = self._living_zygote()
        try:
            return zygote.fork_keeper()
        except SandboxError:
            if not zygote.wait_for_end(timeout_s=1.0):
                raise
        return self._living_zygote().fork_keeper()


class LocalSession:
    """A session of a `LocalSandbox`."""

    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox
        self._history: list[tuple[str, str | None, Limits]] = []
        self._closed = False
        self._channel: _Channel | None = sandbox._connect()

    @property
    def keeper_pid(self) -> int | None:
        """The process that keeps this session, ``None`` when it is closed."""
        return self._channel.keeper_pid if self._channel else None

    def run(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a cell. See `cleaner_env.sandbox.Session.run`."""
        return self._run(code, stdin, limits, script=False)

    def close(self) -> None:
        self._closed = True
        self._drop_channel()

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, code: str, stdin: str | None, limits: Limits | None, script: bool) -> Execution:
        if self._closed:
            return infrastructure_error("the session is closed")
        limits = limits or self._sandbox.limits
        started = time.monotonic()
        try:
            if self._channel is None:
                self._replace()
            assert self._channel is not None
            execution, lost = self._channel.run(code, stdin, limits, script)
        except SandboxError as error:
            self._drop_channel()
            return infrastructure_error(str(error), time.monotonic() - started)
        if execution.ok and not script:
            self._history.append((code, stdin, limits))
        if lost:
            self._drop_channel()
        return execution

    def _replace(self) -> None:
        """Opens a new interpreter and runs the successful cells again.

        Raises:
            SandboxError: It cannot be opened, or a cell does not succeed again.
        """
        self._drop_channel()
        channel = self._sandbox._connect()
        for number, (code, stdin, limits) in enumerate(self._history, 1):
            execution, _ = channel.run(code, stdin, limits, script=False)
            if not execution.ok:
                channel.close()
                raise SandboxError(
                    f"the session was lost, and its cell {number} ended with {execution.status} when replayed"
                )
        self._channel = channel

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Channel:
    """The host's end of the socket to a keeper."""

    def __init__(self, connection: socket.socket) -> None:
        self.keeper_pid: int | None = None
        self._connection = connection
        self.close = weakref.finalize(self, _hang_up, connection)

    def wait_until_ready(self) -> None:
        """Waits for the keeper and its interpreter.

        Raises:
            SandboxError: They did not start.
        """
        ready = False
        while self.keeper_pid is None or not ready:
            message = self._receive(_START_TIMEOUT_S)
            if message.get("kind") == "error":
                raise SandboxError(f"the session did not start: {message.get('message')}")
            if message.get("kind") == "keeper":
                self.keeper_pid = int(message["pid"])
            ready = ready or message.get("kind") == "ready"

    def run(self, code: str, stdin: str | None, limits: Limits, script: bool) -> tuple[Execution, bool]:
        """Runs a cell; returns its outcome, and whether the session's state is lost.

        Raises:
            SandboxError: The keeper is gone, or does not answer.
        """
        request = {"code": code, "stdin": stdin, "limits": asdict(limits), "script": script}
        started = time.monotonic()
        try:
            self._connection.settimeout(limits.wall_s + _REPLY_GRACE_S)
            self._connection.sendall(frames.encode(request))
        except OSError as error:
            raise SandboxError(f"the sandbox died: {error}") from None
        reply = self._receive(limits.wall_s + _REPLY_GRACE_S)
        return execution_from_reply(reply, limits, time.monotonic() - started), bool(reply.get("lost"))

    def _receive(self, timeout_s: float) -> frames.Message:
        try:
            return frames.receive_timed(self._connection, timeout_s)
        except EOFError:
            raise SandboxError("the sandbox died") from None
        except TimeoutError:
            self._kill_keeper()
            raise SandboxError(f"the sandbox did not answer within {timeout_s:g} s") from None
        except (OSError, frames.FrameError) as error:
            raise SandboxError(f"the sandbox's answer cannot be read: {error}") from None

    def _kill_keeper(self) -> None:
        """Ends a keeper that hangs; its silence instead of an end of file says that it is still there."""
        if self.keeper_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.keeper_pid, signal.SIGKILL)


class _Zygote:
    """The warm interpreter: a child process and the socket to it."""

    def __init__(self, python: str, preload: Sequence[str], namespaces: Sequence[str] | None) -> None:
        ours, theirs = _socket_pair()
        self._control = ours
        self._sending = threading.Lock()
        with theirs, tempfile.TemporaryFile() as errors:
            options = {
                "preload": list(preload),
                "folder": str(_sessions_folder()),
                "hidden": [str(Path(__file__).parents[1])],  # With the answers to the built-in problems in it.
                "namespaces": None if namespaces is None else list(namespaces),
            }
            arguments = [str(Path(__file__).parent), str(theirs.fileno()), json.dumps(options)]
            try:
                self._process = subprocess.Popen(
                    [python, "-s", "-B", "-c", _LAUNCH, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    env=_environment(python),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"cannot start the sandbox's interpreter {python!r}: {error}") from None
            theirs.close()
            self.close = weakref.finalize(self, _end_zygote, self._process, ours, os.getpid())
            try:
                self.facts = frames.receive_timed(ours, _START_TIMEOUT_S)
            except (EOFError, OSError, frames.FrameError):
                self.close()
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
                raise SandboxError(f"the sandbox's interpreter {python!r} did not start: {lines[-1]}") from None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_for_end(self, timeout_s: float) -> bool:
        """Waits for the process to end; returns whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.is_alive()

    def fork_keeper(self) -> _Channel:
        """Has a keeper forked for a new session.

        Raises:
            SandboxError: The zygote or the keeper failed.
        """
        ours, theirs = _socket_pair()
        channel = _Channel(ours)
        with theirs:
            try:
                with self._sending:
                    frames.send(self._control, {}, [theirs.fileno()])
            except OSError as error:
                channel.close()
                raise SandboxError(f"the sandbox died: {error}") from None
        try:
            channel.wait_until_ready()
        except SandboxError:
            channel.close()
            raise
        return channel


def _hang_up(connection: socket.socket) -> None:
    """Closes a socket so that the other side, and a thread that waits on this side, see the end at once."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _end_zygote(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    if owner != os.getpid():
        process.returncode = 0  # It is another process's child; nothing to wait for.
        return
    _hang_up(control)
    try:
        process.wait(_REPLY_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(python: str) -> dict[str, str]:
    folders = [str(Path(python).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(folders)),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        **{f"{library}_NUM_THREADS": "1" for library in _ONE_THREAD},
        "VECLIB_MAXIMUM_THREADS": "1",
    }


def _sessions_folder() -> Path:
    """Returns a folder of this user alone, the same each time, so that paths in tracebacks are the same too."""
    folder = Path(tempfile.gettempdir()) / f"cleaner-env-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return folder
    except OSError:
        pass
    private = Path(tempfile.mkdtemp(prefix="cleaner-env-"))
    weakref.finalize(_open_sockets, shutil.rmtree, private, ignore_errors=True)
    return private


def _checked_namespaces(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    unknown = [names] if isinstance(names, str) else [name for name in names if name not in NAMESPACE_FLAGS]
    if unknown:
        raise ConfigError(f"unknown namespace {unknown[0]!r}; give a sequence of {', '.join(NAMESPACE_FLAGS)}")
    return tuple(names)


_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_sandboxes: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    _open_sockets.update(pair)
    return pair


def _forget_parent() -> None:
    """Lets a forked child go of its parent's processes, which could not see the end of the parent otherwise."""
    for connection in list(_open_sockets):
        connection.close()
    for sandbox in list(_sandboxes):
        sandbox._forget_processes()


os.register_at_fork(after_in_child=_forget_parent)
