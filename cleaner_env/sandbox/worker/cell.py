"""Watches one cell: reads its output as it comes, keeps the clock, counts what it uses, and hears its report."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Collection
from typing import Any

from . import frames, processes

_TICK_S = 0.05
_REPORT_LIMIT = 4 << 20
_PEERS_LIMIT = 64


class HostGone(Exception):  # noqa: N818 - an event, not an error
    """The host has closed its end."""


class InterpreterLost(Exception):  # noqa: N818 - an event, not an error
    """The interpreter that holds the state is gone."""


class Cell:
    """One run: a fork of the interpreter, watched until it reports, dies, or breaks a limit.

    Attributes:
        output: Standard output and standard error.
        report: What the process said of its end; foreign, so not to be believed.
        successor: The connection to the process of a cell that says it succeeded.
        known_pids: Processes of the cell, as far as they told; the interpreter tells where there is no ``/proc``.
        wait_status: How the process died, as ``os.waitpid`` gives it, once known.
        cause: The status to give where a limit was broken.
    """

    def __init__(
        self,
        request: frames.Message,
        listener: socket.socket,
        interpreter: socket.socket,
        waiting_pids: Collection[int],
        host_fd: int,
        base_bytes: int,
    ) -> None:
        self.limits: dict[str, Any] = request["limits"]
        self.is_script = bool(request["script"])
        self.listener = listener
        self.interpreter = interpreter
        self.waiting_pids = waiting_pids
        self.host_fd = host_fd
        self.data_bytes = base_bytes + (int(self.limits["memory_mb"]) << 20)
        self.token = os.urandom(16).hex()
        self.report: frames.Message = {}
        self.successor: Peer | None = None
        self.wait_status: int | None = None
        self.cause: str | None = None
        self.known_pids: list[int] = []
        self.peers: dict[int, Peer] = {}
        self.output: list[Stream] = []
        self.poll = select.poll()
        self._start(request)

    def _start(self, request: frames.Message) -> None:
        theirs = [_input_file(request.get("stdin") or "")]
        for _ in range(2):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self.output.append(Stream(reading, int(self.limits["output_bytes"])))
            theirs.append(writing)
        command = {
            "park": False,
            "code": request["code"],
            "script": self.is_script,
            "token": self.token,
            "limits": self.limits,
        }
        with contextlib.suppress(OSError):  # Where the interpreter is gone, `run` notices.
            frames.send(self.interpreter, command, theirs)
        for fd in theirs:
            os.close(fd)
        for watched in (self.host_fd, self.interpreter.fileno(), self.listener.fileno(), *(s.fd for s in self.output)):
            self.poll.register(watched, select.POLLIN)

    def run(self) -> None:
        """Returns when the cell has ended, or has to be ended.

        Raises:
            HostGone: The host has hung up.
            InterpreterLost: The interpreter that forked the cell is gone.
        """
        now = time.monotonic()
        deadline = now + float(self.limits["wall_s"])
        next_look = now + _TICK_S
        try:
            while not self._ended():
                now = time.monotonic()
                if now >= deadline:
                    self.cause = "timeout"
                elif now >= next_look:
                    self._look_at_usage()
                    next_look = time.monotonic() + _TICK_S
                wait_s = max(0.0, min(deadline, next_look) - time.monotonic())
                for fd, _ in self.poll.poll(wait_s * 1000 + 0.5):
                    self._on_ready(fd)
        finally:
            while self._on_connect():  # A process that reports and dies at once may be known as dead first.
                pass
            for peer in list(self.peers.values()):
                if peer.report is None:
                    self._on_peer(peer)
            for stream in self.output:
                stream.drain()
                os.close(stream.fd)
            for peer in self.peers.values():
                if peer is not self.successor:
                    peer.connection.close()
            if self.cause is None and any(stream.exceeded for stream in self.output):
                self.cause = "output_limit"
            if self.cause is not None and self.successor is not None:
                self.successor.connection.close()
                self.successor = None

    def _ended(self) -> bool:
        return self.cause is not None or self.wait_status is not None or self.successor is not None

    def _on_ready(self, fd: int) -> None:
        if fd == self.host_fd:
            raise HostGone
        if fd == self.interpreter.fileno():
            self._on_interpreter()
        elif fd == self.listener.fileno():
            self._on_connect()
        elif fd in self.peers:
            self._on_peer(self.peers[fd])
        else:
            stream = next(stream for stream in self.output if stream.fd == fd)
            if stream.read():
                self.poll.unregister(fd)
            if stream.exceeded:
                self.cause = "output_limit"

    def _on_interpreter(self) -> None:
        try:
            message, _ = frames.receive(self.interpreter)
            if message.get("kind") == "forked":
                self.known_pids.append(int(message["pid"]))
            else:
                self.wait_status = int(message["status"])
        except (EOFError, OSError, ValueError, KeyError, TypeError, frames.FrameError) as error:
            raise InterpreterLost from error

    def _on_connect(self) -> bool:
        """Accepts a connection; returns whether there was one."""
        try:
            peer = Peer(self.listener.accept()[0], self.token)
        except OSError:
            return False
        if len(self.peers) < _PEERS_LIMIT:
            self.peers[peer.connection.fileno()] = peer
            self.poll.register(peer.connection, select.POLLIN)
        else:
            peer.connection.close()
        return True

    def _on_peer(self, peer: Peer) -> None:
        peer.receive()
        if peer.report is None and not peer.closed:
            return
        fd = peer.connection.fileno()
        self.poll.unregister(fd)
        if peer.report is None:
            peer.connection.close()
            del self.peers[fd]
            return
        self.report = peer.report
        self.known_pids.append(peer.pid)
        if peer.report.get("kind") == "done" and not self.is_script:
            self.successor = peer

    def _look_at_usage(self) -> None:
        alive = 0
        for pid in processes.descendants(os.getpid()):
            used = processes.usage(pid) if pid not in self.waiting_pids else None
            if used is None:
                continue
            alive += used.threads
            if used.data_bytes > self.data_bytes + (16 << 20):
                self.cause = "oom"
            if self.limits["cpu_s"] is not None and used.cpu_s > self.limits["cpu_s"]:
                self.cause = "timeout"
        if alive > self.limits["processes"]:
            self.cause = "killed"


class Stream:
    """One of a cell's outputs, read as it comes and never kept beyond its limit."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.limit = limit
        self.exceeded = False
        self._data = bytearray()

    def read(self) -> bool:
        """Reads what there is; returns whether the end has come."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        self.append(data)
        return not data

    def append(self, data: bytes) -> None:
        """Takes bytes, as far as the limit allows."""
        self.exceeded = self.exceeded or len(self._data) + len(data) > self.limit
        self._data += data[: self.limit - len(self._data)]

    def drain(self) -> None:
        """Reads what was written before now and is still on its way."""
        before = -1
        while not self.exceeded and len(self._data) != before:
            before = len(self._data)
            self.read()

    def text(self) -> str:
        """Returns the text so far; a character cut by the limit is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._data), final=not self.exceeded)


class Peer:
    """A process that connected to the channel, and is nobody until it shows the token."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self.connection = connection
        self.closed = False
        self.report: frames.Message | None = None
        self.pid = _peer_pid(connection)
        self._token = token
        self._data = b""
        connection.setblocking(False)

    def receive(self) -> None:
        """Reads what there is; sets `report` when a whole and rightful one has come, `closed` when none can come."""
        while self.report is None and not self.closed:
            try:
                data = self.connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._data += data
            self._parse(at_end=not data)

    def _parse(self, at_end: bool) -> None:
        size = struct.unpack("!I", self._data[:4])[0] if len(self._data) >= 4 else 0
        if at_end or size > _REPORT_LIMIT:
            self.closed = True
        elif size and len(self._data) >= 4 + size:
            try:
                report = frames.decode(self._data[4 : 4 + size])
            except frames.FrameError:
                report = {}
            if report.get("token") == self._token:
                self.report = report
                self.pid = self.pid or int(report.get("pid", 0))
            else:
                self.closed = True

    def blocking(self) -> socket.socket:
        """Returns the connection, made blocking."""
        self.connection.setblocking(True)
        return self.connection


def _peer_pid(connection: socket.socket) -> int:
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _input_file(text: str) -> int:
    if not text:
        return os.open(os.devnull, os.O_RDONLY)
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(text.encode("utf-8", "replace"))
        file.seek(0)
        return os.dup(file.fileno())
