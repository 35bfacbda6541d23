"""The host's end of a worker on this machine: the process that sessions are forked from."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from cleaner_env.errors import SandboxError
from cleaner_env.sandbox.channel import START_TIMEOUT_S, Channel, hang_up
from cleaner_env.sandbox.worker import frames

__all__ = ["Zygote", "session_environment"]

_END_PATIENCE_S = 10.0
_LAUNCH = "import sys; sys.path[:1] = [sys.argv[1]]; from worker.zygote import main; del sys.path[0]; main(sys.argv[2:])"
_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Zygote:
    """The warm interpreter: a child process and the socket to it, and one spare session, forked ahead."""

    def __init__(self, python: str, preload: Sequence[str], namespaces: Sequence[str] | None) -> None:
        ours, theirs = _socket_pair()
        self._control = ours
        self._sending = threading.Lock()
        self._keeping = threading.Lock()
        self._spares: list[Channel] = []
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
                    env=session_environment(str(Path(python).parent)),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"cannot start the sandbox's interpreter {python!r}: {error}") from None
            theirs.close()
            self.close = weakref.finalize(self, _end_zygote, self._process, ours, self._spares, os.getpid())
            try:
                self.facts = frames.receive_timed(ours, START_TIMEOUT_S)
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
        """Returns the spare session, or else has one forked; and has the next spare forked, for the next to ask.

        Raises:
            SandboxError: The zygote or the keeper failed.
        """
        channel = self._take_spare() or self._ready(self._fork_keeper())
        self.fork_spare()
        return channel

    def fork_spare(self) -> None:
        """Has a session forked ahead, unless there is one."""
        with self._keeping:
            if not self._spares and self.close.alive:
                with contextlib.suppress(SandboxError):  # Whoever needs a session will hear of it.
                    self._spares.append(self._fork_keeper())

    def _take_spare(self) -> Channel | None:
        with self._keeping:
            spare = self._spares.pop() if self._spares else None
        try:
            return spare and self._ready(spare)
        except SandboxError:
            return None

    def _fork_keeper(self) -> Channel:
        ours, theirs = _socket_pair()
        channel = Channel(ours)
        with theirs:
            try:
                with self._sending:
                    frames.send(self._control, {}, [theirs.fileno()])
            except OSError as error:
                channel.close()
                raise SandboxError(f"the sandbox died: {error}") from None
        return channel

    def _ready(self, channel: Channel) -> Channel:
        try:
            channel.wait_until_ready()
        except SandboxError:
            channel.close()
            raise
        return channel


def _end_zygote(process: subprocess.Popen[bytes], control: socket.socket, spares: list[Channel], owner: int) -> None:
    for spare in spares:
        spare.close()
    if owner != os.getpid():
        process.returncode = 0  # It is another process's child; nothing to wait for.
        return
    hang_up(control)
    try:
        process.wait(_END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def session_environment(*folders: str) -> dict[str, str]:
    """Returns the environment variables that every session starts with, ``PATH`` beginning with some folders."""
    path = (*folders, "/usr/local/bin", "/usr/bin", "/bin")
    return {
        "PATH": ":".join(dict.fromkeys(path)),
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
