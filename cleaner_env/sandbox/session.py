"""A session as the host sees it: cells go through a channel, and a lost channel is replaced and the cells replayed."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Protocol

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox.asynchronous import in_thread
from cleaner_env.sandbox.channel import Channel
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import infrastructure_error

__all__ = ["Backend", "ReplayedSession"]

_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]+")


class Backend(Protocol):
    """What a session needs of its sandbox."""

    limits: Limits

    def _connect(self) -> Channel:
        """Returns the channel to a fresh session; raises `SandboxError`."""

    def _take_back(self, channel: Channel) -> None:
        """Takes the channel of a session that was closed in good order."""


@dataclass(frozen=True)
class _Cell:
    """A cell, and what it gave: whoever saw that must not find another state behind it."""

    code: str
    stdin: str | None
    limits: Limits
    gave: tuple[str, str] | None = None


@dataclass(frozen=True)
class _Checkpoint:
    """Where the state is kept, and how to make it again should that be gone."""

    channel: Channel
    token: str
    history: tuple[_Cell, ...]


class ReplayedSession:
    """A session of any backend. Threads that use it at the same time wait for each other."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._history: list[_Cell] = []
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._checkpoints_made = 0
        self._closed = False
        self._channel: Channel | None = backend._connect()

    @property
    def keeper_pid(self) -> int | None:
        """The process that keeps this session, ``None`` when it is closed, or is no process of this machine."""
        return self._channel.keeper_pid if self._channel else None

    def run(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a cell. See `cleaner_env.sandbox.Session.run`."""
        return self._run(code, stdin, limits, script=False)

    async def arun(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a cell without blocking the event loop. See `cleaner_env.sandbox.Session.arun`."""
        return await in_thread(self.run, code, stdin, limits, on_cancel=self._drop_channel)

    def checkpoint(self) -> str:
        """Keeps the present state. See `cleaner_env.sandbox.Session.checkpoint`."""
        with self._lock:
            channel = self._living_channel()
            try:
                kept = channel.checkpoint()
            except SandboxError:
                if not channel.close.alive:
                    self._drop_channel()
                raise
            self._checkpoints_made += 1
            token = f"checkpoint-{self._checkpoints_made}"
            self._checkpoints[token] = _Checkpoint(channel, kept, tuple(self._history))
            return token

    def rollback(self, token: str) -> None:
        """Goes back to a checkpoint. See `cleaner_env.sandbox.Session.rollback`."""
        with self._lock:
            checkpoint = self._find(token)
            if checkpoint.channel is self._channel:
                try:
                    checkpoint.channel.rollback(checkpoint.token)
                except SandboxError:
                    self._drop_channel()
            else:
                self._drop_channel()  # What is there now is not it; the next cell has it replayed.
            self._history = list(checkpoint.history)

    def release(self, token: str) -> None:
        """Gives up a checkpoint. See `cleaner_env.sandbox.Session.release`."""
        with self._lock:
            checkpoint = self._find(token)
            del self._checkpoints[token]
            if checkpoint.channel is self._channel:
                try:
                    checkpoint.channel.release(checkpoint.token)
                except SandboxError:
                    self._drop_channel()

    def close(self) -> None:
        """Ends the session. May be called twice."""
        self._closed = True
        if not self._lock.acquire(blocking=False):  # A cell is running; it ends with its channel.
            self._drop_channel()
            return
        try:
            channel, self._channel = self._channel, None
            if channel is not None:
                self._backend._take_back(channel)
        finally:
            self._lock.release()

    def __enter__(self) -> ReplayedSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, code: str, stdin: str | None, limits: Limits | None, script: bool) -> Execution:
        with self._lock:
            if self._closed:
                return infrastructure_error("the session is closed")
            cell = _Cell(code, stdin, limits or self._backend.limits)
            started = time.monotonic()
            try:
                execution, lost = self._living_channel().run(cell.code, cell.stdin, cell.limits, script)
            except SandboxError as error:
                self._drop_channel()
                return infrastructure_error(str(error), time.monotonic() - started)
            except BaseException:  # Interrupted: a reply that comes now must not be taken for that of a later cell.
                self._drop_channel()
                raise
            if execution.ok and not script:
                self._history.append(replace(cell, gave=_given(execution)))
            if lost:
                self._drop_channel()
            return execution

    def _living_channel(self) -> Channel:
        """Returns the channel; opens a new interpreter and runs the successful cells again where it was lost.

        Raises:
            SandboxError: It cannot be opened, or a cell does not give again what it gave; or the session is closed.
        """
        if self._closed:
            raise SandboxError("the session is closed")
        if self._channel is None:
            channel = self._backend._connect()
            try:
                _replay(self._history, channel)
            except BaseException:
                channel.close()
                raise
            self._channel = channel
        return self._channel

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _forget_parent(self) -> None:
        """In a forked child: what runs is the parent's."""
        self._lock = threading.Lock()
        self._channel = None

    def _find(self, token: str) -> _Checkpoint:
        if self._closed:
            raise SandboxError("the session is closed")
        try:
            return self._checkpoints[token]
        except KeyError:
            raise ConfigError(f"this session has no checkpoint {token!r}; give what checkpoint() returned") from None


def _replay(history: list[_Cell], channel: Channel) -> None:
    for number, cell in enumerate(history, 1):
        execution, _ = channel.run(cell.code, cell.stdin, cell.limits, script=False)
        if not execution.ok:
            raise SandboxError(f"the session was lost, and its cell {number} ended with {execution.status} when replayed")
        if _given(execution) != cell.gave:
            raise SandboxError(f"the session was lost, and its cell {number} gave other output when replayed")


def _given(execution: Execution) -> tuple[str, str]:
    """What was seen of a cell, less the addresses of objects, which say nothing about the state."""
    return _ADDRESS.sub("", execution.stdout), _ADDRESS.sub("", execution.value or "")
