"""The host's end of the stream to a keeper, the process that looks after one session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import weakref
from dataclasses import asdict
from typing import Protocol

from cleaner_env.errors import SandboxError
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import execution_from_reply
from cleaner_env.sandbox.worker import frames

__all__ = ["START_TIMEOUT_S", "Channel", "Connection", "hang_up"]

START_TIMEOUT_S = 60.0
_REPLY_GRACE_S = 10.0
_FOREVER_S = 1e6


class Connection(frames.Receiver, Protocol):
    """What a channel needs of a socket."""

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Channel:
    """Sends commands and receives what became of them.

    Attributes:
        keeper_pid: The keeper's process where it is one of this machine, else ``None``.
    """

    def __init__(self, connection: Connection) -> None:
        self.keeper_pid: int | None = None
        self._connection = connection
        self.close = weakref.finalize(self, hang_up, connection)

    def wait_until_ready(self) -> None:
        """Waits for the keeper and its interpreter.

        Raises:
            SandboxError: They did not start.
        """
        ready = False
        while self.keeper_pid is None or not ready:
            message = self.receive(START_TIMEOUT_S)
            if message.get("kind") == "keeper":
                self.keeper_pid = int(message["pid"])
            ready = ready or message.get("kind") == "ready"

    def run(self, code: str, stdin: str | None, limits: Limits, script: bool) -> tuple[Execution, bool]:
        """Runs a cell; returns its outcome, and whether the session's state is lost.

        Raises:
            SandboxError: The keeper is gone, or does not answer.
        """
        request = {"kind": "run", "code": code, "stdin": stdin, "limits": asdict(limits), "script": script}
        started = time.monotonic()
        reply = self._ask(request, min(limits.wall_s, _FOREVER_S))
        return execution_from_reply(reply, limits, time.monotonic() - started), bool(reply.get("lost"))

    def checkpoint(self) -> str:
        """Makes a checkpoint; returns the keeper's name for it.

        Raises:
            SandboxError: It could not be made; the state may be lost.
        """
        return str(self._ask_about_checkpoint({"kind": "checkpoint"})["token"])

    def rollback(self, token: str) -> None:
        """Goes back to a checkpoint; raises as `checkpoint` does."""
        self._ask_about_checkpoint({"kind": "rollback", "token": token})

    def release(self, token: str) -> None:
        """Gives up a checkpoint; raises as `checkpoint` does."""
        self._ask_about_checkpoint({"kind": "release", "token": token})

    def send(self, message: frames.Message, timeout_s: float) -> None:
        """Sends a message; raises `SandboxError` where nobody takes it."""
        try:
            self._connection.settimeout(timeout_s)
            self._connection.sendall(frames.encode(message))
        except OSError as error:
            raise SandboxError(f"the sandbox died: {error}") from None

    def receive(self, timeout_s: float) -> frames.Message:
        """Receives a message; raises `SandboxError` where none, or one about a failure, comes."""
        try:
            message = frames.receive_timed(self._connection, timeout_s)
        except EOFError:
            raise SandboxError(f"the sandbox died{self._last_words()}") from None
        except TimeoutError:
            self._end_keeper()
            raise SandboxError(f"the sandbox did not answer within {timeout_s:g} s") from None
        except (OSError, frames.FrameError) as error:
            raise SandboxError(f"the sandbox's answer cannot be read: {error}") from None
        if message.get("kind") == "error":
            raise SandboxError(f"the session did not start: {message.get('message')}")
        return message

    def _ask(self, request: frames.Message, patience_s: float) -> frames.Message:
        self.send(request, patience_s + _REPLY_GRACE_S)
        return self.receive(patience_s + _REPLY_GRACE_S)

    def _ask_about_checkpoint(self, request: frames.Message) -> frames.Message:
        reply = self._ask(request, START_TIMEOUT_S)
        if reply.get("lost"):
            self.close()
        if "token" not in reply:
            raise SandboxError(str(reply.get("error", "the sandbox has no checkpoint to offer"))[:200])
        return reply

    def _last_words(self) -> str:
        """What is known of why the other side is gone, as the end of a sentence."""
        return ""

    def _end_keeper(self) -> None:
        """Ends a keeper that hangs; its silence instead of an end of file says that it is still there."""
        if self.keeper_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.keeper_pid, signal.SIGKILL)


def hang_up(connection: Connection) -> None:
    """Closes a socket so that the other side, and a thread that waits on this side, see the end at once."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
