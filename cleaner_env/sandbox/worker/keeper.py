"""Keeps one session: starts its interpreter, runs its cells against the clock, and cleans up behind each."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any, NoReturn

from . import files, frames, isolation, processes
from .interpreter import Interpreter

_TICK_S = 0.05
_REPORT_LIMIT = 4 << 20
_PATIENCE_S = 5.0


class HostGone(Exception):  # noqa: N818 - an event, not an error
    """The host has closed its end."""


class InterpreterLost(Exception):  # noqa: N818 - an event, not an error
    """The interpreter that holds the state is gone."""


class Keeper:
    """Serves one session on a pair of descriptors.

    Args:
        host_in: Commands are read from here; its end of file ends the session.
        host_out: Replies are written here.
        folder: Where the session's files are, as the interpreter sees it. This process's working folder holds ``files``,
            which is the same place, and will hold the store of the snapshots.
        base_bytes: Private memory of the warm interpreter.
        namespaces: The namespaces this process is in.
    """

    def __init__(self, host_in: int, host_out: int, folder: str, base_bytes: int, namespaces: list[str]) -> None:
        self.host_in = host_in
        self.host_out = host_out
        self.folder = folder
        self.base_bytes = base_bytes
        self.namespaces = namespaces
        self.oom_kills = processes.kernel_oom_kills()
        name = f"cleaner-env-{os.urandom(16).hex()}"
        self.channel = f"\0{name}" if sys.platform == "linux" else os.path.join(tempfile.gettempdir(), name[:40])
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.channel)
        self.listener.listen(64)
        self.listener.setblocking(False)
        for path in ("files/work", "files/tmp", "store"):
            os.makedirs(path, 0o700)
        self.snapshot = files.FileSnapshot("files", "store")
        self.snapshot.take()
        self.connection: socket.socket | None = None
        self.interpreter_pid = self._start_interpreter()

    def serve(self) -> NoReturn:
        """Answers commands until the host hangs up; then kills everything and ends this process."""
        try:
            while True:
                reply = self._run(frames.read(self.host_in))
                frames.write(self.host_out, reply)
        except (EOFError, OSError, HostGone, frames.FrameError):
            pass
        finally:
            processes.kill_descendants(also=[self.interpreter_pid])
            if not self.channel.startswith("\0"):
                os.unlink(self.channel)
            os._exit(0)

    def _start_interpreter(self) -> int:
        token = os.urandom(16).hex()
        pid = os.fork()
        if pid == 0:
            try:
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                os.setsid()
                isolation.drop_privileges()
                isolation.set_traceable(True)
                isolation.prefer_for_oom_kill()
                work, temporary = (os.path.join(self.folder, name) for name in ("work", "tmp"))
                os.chdir(work)
                os.environ.update(HOME=work, PWD=work, TMPDIR=temporary, MPLCONFIGDIR=os.path.join(temporary, "matplotlib"))
                counts = isolation.counts_processes(self.namespaces)
                Interpreter(self.channel, self.base_bytes, counts).serve(token)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([self.listener], [], [], 0.1)[0]:
                peer = Peer(self.listener.accept()[0], token)
                while peer.report is None and not peer.closed and select.select([peer.connection], [], [], 5)[0]:
                    peer.receive()
                if peer.report is not None:
                    self.connection = peer.blocking()
                    return pid
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
        raise RuntimeError("the interpreter did not start")

    def _run(self, request: frames.Message) -> frames.Message:
        assert self.connection is not None
        started = time.monotonic()
        cell = Cell(request, self.listener, self.connection, self.interpreter_pid, self.host_in, self.base_bytes)
        lost = False
        try:
            cell.run()
        except InterpreterLost:
            lost = True
        reply: frames.Message
        if cell.successor is not None and self._commit(cell):
            reply = {"status": "ok", "value": cell.report.get("value"), "truncated": bool(cell.report.get("clipped"))}
        else:
            lost = not self._roll_back(cell, lost)
            reply = self._explain(cell)
        reply.update(
            stdout=cell.output[0].text(),
            stderr=cell.output[1].text(),
            truncated=reply.get("truncated", False) or any(stream.exceeded for stream in cell.output),
            lost=lost,
            keeper_s=time.monotonic() - started,
        )
        return reply

    def _commit(self, cell: Cell) -> bool:
        """Makes the cell's process the session's interpreter; refuses where its files are too many."""
        successor = cell.successor
        assert successor is not None
        assert self.connection is not None
        processes.kill_descendants(keep=(self.interpreter_pid, successor.pid))
        try:
            self.snapshot.take(thorough=bool(cell.report.get("mapped", True)))
        except (files.QuotaExceededError, OSError) as error:
            cell.cause = "output_limit"
            cell.output[1].append(f"{error}\n".encode())
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.interpreter_pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.interpreter_pid, 0)
        self.connection.close()
        self.connection = successor.blocking()
        self.interpreter_pid = successor.pid
        return True

    def _roll_back(self, cell: Cell, lost: bool) -> bool:
        """Drops the cell's process, waits for the interpreter that forked it, and puts the files back."""
        assert self.connection is not None
        known = [cell.successor.pid] if cell.successor else []
        gone = processes.kill_descendants(keep=() if lost else (self.interpreter_pid,), also=known)
        if lost or not gone:
            return False
        if cell.wait_status is None:
            self.connection.settimeout(_PATIENCE_S)
            try:
                cell.wait_status = int(frames.receive(self.connection)[0]["status"])
            except (EOFError, OSError, ValueError, KeyError, frames.FrameError):
                return False
            finally:
                self.connection.settimeout(None)
        self.snapshot.restore()
        return True

    def _explain(self, cell: Cell) -> frames.Message:
        report = cell.report
        reply: frames.Message = {"exception": report.get("exception"), "exit_code": None, "signal": None}
        status = cell.wait_status
        if cell.cause is not None:
            reply["status"] = cell.cause
        elif status is None:
            reply.update(status="killed", signal="SIGKILL")
        elif os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                reply["status"] = "timeout"
            elif number == signal.SIGKILL and self._kernel_was_short_of_memory():
                reply["status"] = "oom"
            else:
                reply.update(status="killed", signal=_signal_name(number))
        else:
            code = os.WEXITSTATUS(status)
            if report.get("oom"):
                reply["status"] = "oom"
            elif cell.is_script:
                reply.update(status="error" if code else "ok", exit_code=code)
            elif report and report.get("exit_code") is None:
                reply["status"] = "error"
            else:
                reply.update(status="exit", exit_code=code, exception=None)
        return reply

    def _kernel_was_short_of_memory(self) -> bool:
        before, self.oom_kills = self.oom_kills, processes.kernel_oom_kills()
        return self.oom_kills > before


class Cell:
    """One run: a fork of the interpreter, watched until it reports, dies, or breaks a limit.

    Attributes:
        output: Standard output and standard error.
        report: What the process said of its end; foreign, so not to be believed.
        successor: The connection to the process of a cell that says it succeeded.
        wait_status: How the process died, as ``os.waitpid`` gives it, once known.
        cause: The status to give where a limit was broken.
    """

    def __init__(
        self,
        request: frames.Message,
        listener: socket.socket,
        interpreter: socket.socket,
        interpreter_pid: int,
        host_fd: int,
        base_bytes: int,
    ) -> None:
        self.limits: dict[str, Any] = request["limits"]
        self.is_script = bool(request["script"])
        self.listener = listener
        self.interpreter = interpreter
        self.interpreter_pid = interpreter_pid
        self.host_fd = host_fd
        self.data_bytes = base_bytes + (int(self.limits["memory_mb"]) << 20)
        self.token = os.urandom(16).hex()
        self.report: frames.Message = {}
        self.successor: Peer | None = None
        self.wait_status: int | None = None
        self.cause: str | None = None
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
        command = {"code": request["code"], "script": self.is_script, "token": self.token, "limits": self.limits}
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
            self._on_connect()  # A process that reports and dies at once may be known as dead first.
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
            if self.cause is not None:
                self._reject_successor()

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
            self.wait_status = int(frames.receive(self.interpreter)[0]["status"])
        except (EOFError, OSError) as error:
            raise InterpreterLost from error

    def _on_connect(self) -> None:
        try:
            peer = Peer(self.listener.accept()[0], self.token)
        except OSError:
            return
        if len(self.peers) > 16:
            peer.connection.close()
            return
        self.peers[peer.connection.fileno()] = peer
        self.poll.register(peer.connection, select.POLLIN)

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
        if peer.report.get("kind") == "done" and not self.is_script:
            self.successor = peer

    def _reject_successor(self) -> None:
        if self.successor is not None:
            self.successor.connection.close()

    def _look_at_usage(self) -> None:
        alive = 0
        for pid in processes.descendants(os.getpid()):
            used = processes.usage(pid) if pid != self.interpreter_pid else None
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
        data = bytes(self._data)
        if self.exceeded:
            for cut in range(1, min(4, len(data) + 1)):
                if data[-cut] >= 0xC0:
                    data = data[:-cut]
                    break
                if data[-cut] < 0x80:
                    break
        return data.decode("utf-8", "replace")


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
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._data += data
        size = struct.unpack("!I", self._data[:4])[0] if len(self._data) >= 4 else 0
        if not data or size > _REPORT_LIMIT:
            self.closed = True
        elif size and len(self._data) >= 4 + size:
            try:
                report = frames.decode(self._data[4 : 4 + size])
            except frames.FrameError:
                report = {}
            if report.get("token") == self._token:
                self.report = report
                self.pid = self.pid or int(report["pid"])
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
