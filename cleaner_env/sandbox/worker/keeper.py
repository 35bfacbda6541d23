"""Keeps one session: starts its interpreter, runs its cells against the clock, and cleans up behind each."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
from typing import NoReturn

from . import files, frames, isolation, processes, restrictions
from .cell import Cell, HostGone, InterpreterLost, Peer
from .interpreter import Interpreter

_PATIENCE_S = 5.0
_LEAST_PRIORITY = 19
_CHECKPOINTS_LIMIT = 32
_SHARED_MEMORY = "/dev/shm"


class Checkpoint:
    """An interpreter that stays behind, with the files as they were."""

    def __init__(self, pid: int, connection: socket.socket, tree: files.SavedTree) -> None:
        self.pid = pid
        self.connection = connection
        self.tree = tree


class Keeper:
    """Serves one session on a pair of descriptors.

    Args:
        host_in: Commands are read from here; its end of file ends the session.
        host_out: Replies are written here.
        folder: Where the session's files are, as the interpreter sees it. This process's working folder holds ``files``,
            which is the same place, and will hold the store of the snapshots.
        base_bytes: Private memory of the warm interpreter.
        namespaces: The namespaces this process is in.
        in_container: Whether a container is all around, so that the interpreter needs no sockets but those of Unix, and
            has the working folder hidden from it by Landlock instead of a mount namespace.
    """

    def __init__(
        self,
        host_in: int,
        host_out: int,
        folder: str,
        base_bytes: int,
        namespaces: list[str],
        in_container: bool = False,
    ) -> None:
        self.host_in = host_in
        self.host_out = host_out
        self.folder = folder
        self.base_bytes = base_bytes
        self.namespaces = namespaces
        self.in_container = in_container
        self.oom_kills = processes.kernel_oom_kills(self.in_container)
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
        self.retired_pid: int | None = None
        self.checkpoints: dict[str, Checkpoint] = {}
        self.checkpoints_made = 0
        self.interpreter_pid = self._start_interpreter()

    def serve(self) -> NoReturn:
        """Answers commands until the host hangs up; then kills everything and ends this process."""
        try:
            self.answer_commands()
        except (EOFError, OSError, HostGone, frames.FrameError):
            pass
        finally:
            processes.kill_descendants(also=[self.interpreter_pid])
            if not self.channel.startswith("\0"):
                os.unlink(self.channel)
            if "mount" not in self.namespaces:
                files.remove_tree(os.getcwd())
            os._exit(0)

    def answer_commands(self) -> None:
        """Answers commands until the host wants a fresh session; raises where it hangs up."""
        while True:
            request = frames.read(self.host_in)
            kind = request.pop("kind")
            if kind == "end":
                return
            answers = {
                "run": self._run,
                "checkpoint": self._make_checkpoint,
                "rollback": self._go_back,
                "release": self._release,
            }
            try:
                reply = answers[kind](request)
            except (InterpreterLost, ConnectionError) as error:  # A hostile cell killed what was to stay.
                reply = {"lost": True, "error": str(error) or "an interpreter is gone"}
            frames.write(self.host_out, reply)
            self._retire()

    def let_go(self) -> None:
        """Closes what belongs to the session, in a process that goes on."""
        self.listener.close()
        for connection in (self.connection, *(checkpoint.connection for checkpoint in self.checkpoints.values())):
            if connection is not None:
                connection.close()

    def _start_interpreter(self) -> int:
        token = os.urandom(16).hex()
        pid = os.fork()
        if pid == 0:
            try:
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                os.setsid()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                isolation.drop_privileges()
                isolation.set_traceable(True)
                isolation.prefer_for_oom_kill()
                restrictions.forbid_system_calls(
                    restrictions.UNIX_ONLY if self.in_container else restrictions.LOCAL_FAMILIES
                )
                if self.in_container:
                    os.nice(_LEAST_PRIORITY)  # Among the processes of the container: the keeper comes first.
                    restrictions.forbid_writing_outside([self.folder, _SHARED_MEMORY])
                work, temporary = (os.path.join(self.folder, name) for name in ("work", "tmp"))
                os.chdir(work)
                os.environ.update(HOME=work, PWD=work, TMPDIR=temporary, MPLCONFIGDIR=os.path.join(temporary, "matplotlib"))
                counts = isolation.counts_processes(self.namespaces)
                Interpreter(self.channel, self.base_bytes, counts).serve(token)
            finally:
                os._exit(1)
        self.connection = self._await_interpreter(token, child=pid).blocking()
        return pid

    def _await_interpreter(self, token: str, child: int | None = None) -> Peer:
        """Waits for an interpreter to report with a token.

        Raises:
            InterpreterLost: It does not, or the child that was to become it is dead.
        """
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([self.listener], [], [], 0.1)[0]:
                peer = Peer(self.listener.accept()[0], token)
                while peer.report is None and not peer.closed and select.select([peer.connection], [], [], 5)[0]:
                    peer.receive()
                if peer.report is not None:
                    return peer
            if child is not None and os.waitpid(child, os.WNOHANG)[0]:
                break
        raise InterpreterLost("the interpreter did not start")

    def _go_on_from(self, connection: socket.socket) -> None:
        """Has a waiting interpreter stay behind and makes a fork of it the session's.

        Raises:
            InterpreterLost: It is gone.
        """
        token = os.urandom(16).hex()
        frames.send(connection, {"park": True, "token": token})
        peer = self._await_interpreter(token)
        self.interpreter_pid, self.connection = peer.pid, peer.blocking()

    def _make_checkpoint(self, request: frames.Message) -> frames.Message:
        del request
        if len(self.checkpoints) >= _CHECKPOINTS_LIMIT:
            return {"error": f"a session has at most {_CHECKPOINTS_LIMIT} checkpoints; release one"}
        assert self.connection is not None
        pid, connection = self.interpreter_pid, self.connection
        self._go_on_from(connection)
        self.checkpoints_made += 1
        token = str(self.checkpoints_made)
        self.checkpoints[token] = Checkpoint(pid, connection, self.snapshot.save())
        return {"token": token}

    def _go_back(self, request: frames.Message) -> frames.Message:
        checkpoint = self.checkpoints[request["token"]]
        assert self.connection is not None
        self.connection.close()
        if not processes.kill_descendants(keep=self._waiting_pids()):
            raise InterpreterLost("processes did not end")
        self._go_on_from(checkpoint.connection)
        self.snapshot.restore(checkpoint.tree)
        return {"token": request["token"]}

    def _release(self, request: frames.Message) -> frames.Message:
        checkpoint = self.checkpoints.pop(request["token"])
        checkpoint.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(checkpoint.pid, signal.SIGKILL)
        checkpoint.tree.remove()
        return {"token": request["token"]}

    def _waiting_pids(self) -> tuple[int, ...]:
        return tuple(checkpoint.pid for checkpoint in self.checkpoints.values())

    def _run(self, request: frames.Message) -> frames.Message:
        assert self.connection is not None
        started = time.monotonic()
        waiting = (self.interpreter_pid, *self._waiting_pids())
        cell = Cell(request, self.listener, self.connection, waiting, self.host_in, self.base_bytes)
        lost = False
        try:
            cell.run()
        except InterpreterLost:
            lost = True
        reply: frames.Message
        self._clear_shared_memory()
        lost = lost or processes.is_doomed(self.interpreter_pid)  # A cell that kills it fails, whatever it reports.
        if cell.successor is not None and not lost and self._commit(cell):
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
        processes.kill_descendants(keep=(self.interpreter_pid, successor.pid, *self._waiting_pids()))
        try:
            self.snapshot.take(thorough=bool(cell.report.get("mapped", True)))
        except files.QuotaExceededError as error:
            cell.cause = "output_limit"
            cell.output[1].append(f"{error}\n".encode())
            return False
        self.retired_pid = self.interpreter_pid
        self.connection.close()
        self.connection = successor.blocking()
        self.interpreter_pid = successor.pid
        return True

    def _retire(self) -> None:
        """Ends the interpreter that the last cell replaced; after the reply, for it takes its time."""
        if self.retired_pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.retired_pid, signal.SIGKILL)  # It is reaped with the processes of the next cell.
        self.retired_pid = None

    def _roll_back(self, cell: Cell, lost: bool) -> bool:
        """Drops the cell's process, waits for the interpreter that forked it, and puts the files back."""
        assert self.connection is not None
        gone = processes.kill_descendants(
            keep=() if lost else (self.interpreter_pid, *self._waiting_pids()), also=cell.known_pids
        )
        if lost or not gone:
            return False
        try:
            if cell.wait_status is None:
                cell.wait_status = int(frames.receive_timed(self.connection, _PATIENCE_S)["status"])
                self.connection.settimeout(None)
            if not cell.is_script:  # A script is the only one in its session.
                self.snapshot.restore()
        except (EOFError, OSError, RecursionError, ValueError, KeyError, TypeError, frames.FrameError):
            return False
        return True

    def _clear_shared_memory(self) -> None:
        """Ends named shared memory with the cell, like processes: no snapshot can hold what they share."""
        if "mount" in self.namespaces:
            with contextlib.suppress(OSError):
                for name in os.listdir(_SHARED_MEMORY):
                    path = os.path.join(_SHARED_MEMORY, name)
                    files.remove_tree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    def _explain(self, cell: Cell) -> frames.Message:
        report = cell.report
        reply: frames.Message = {"exception": report.get("exception"), "exit_code": None, "signal": None}
        status = cell.wait_status
        if cell.cause is not None:
            reply["status"] = cell.cause
        elif status is None:  # The interpreter is gone, and with it the news of the cell's end.
            oom = self._kernel_was_short_of_memory()
            reply.update(status="oom" if oom else "killed", signal=None if oom else "SIGKILL")
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
        before, self.oom_kills = self.oom_kills, processes.kernel_oom_kills(self.in_container)
        return self.oom_kills > before


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
