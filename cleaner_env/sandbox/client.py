"""The host's ends of a worker: the process that is forked from, and the socket to the keeper of one session."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cleaner_env.errors import SandboxError
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import execution_from_reply
from cleaner_env.sandbox.worker import frames

__all__ = ["Channel", "Zygote"]

_START_TIMEOUT_S = 60.0
_REPLY_GRACE_S = 10.0
_FOREVER_S = 1e6
_LAUNCH = "import sys; sys.path[:1] = [sys.argv[1]]; from worker.zygote import main; del sys.path[0]; main(sys.argv[2:])"
_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Channel:
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
        timeout_s = min(limits.wall_s, _FOREVER_S) + _REPLY_GRACE_S
        started = time.monotonic()
        try:
            self._connection.settimeout(timeout_s)
            self._connection.sendall(frames.encode(request))
        except OSError as error:
            raise SandboxError(f"the sandbox died: {error}") from None
        reply = self._receive(timeout_s)
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


class Zygote:
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

    def fork_keeper(self) -> Channel:
        """Has a keeper forked for a new session.

        Raises:
            SandboxError: The zygote or the keeper failed.
        """
        ours, theirs = _socket_pair()
        channel = Channel(ours)
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
        **dict.fromkeys(_ONE_THREAD, "1"),
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
    atexit.register(_remove_own, private, os.getpid())
    return private


def _remove_own(folder: Path, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    _open_sockets.update(pair)
    return pair


def _close_inherited_sockets() -> None:
    """Lets a forked child go of its parent's processes, which could not see the end of the parent otherwise."""
    for connection in list(_open_sockets):
        connection.close()


os.register_at_fork(after_in_child=_close_inherited_sockets)
