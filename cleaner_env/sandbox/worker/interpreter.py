"""Holds the state of a session and runs its cells, each in a fork that takes over when the cell succeeds.

While a cell runs no descriptor of the sandbox is open in its process. Only after its end does the process connect to the
keeper and show the token that it was given, so a cell that closes or writes to every descriptor does no harm.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import fcntl
import io
import linecache
import os
import signal
import socket
import stat
import sys
import traceback
import types
import warnings
from typing import Any, NoReturn

from . import frames, isolation, processes

_AST_ONLY = 0x400
_FUTURE_FLAGS = 0xFFF0000  # The compiler flags that ``from __future__ import ...`` sets.
_TEXT_LIMIT = 65_536

_socket = socket.socket


class Interpreter:
    """The state of a session: its ``__main__`` module, and how many cells have succeeded."""

    def __init__(self, channel: str, base_bytes: int, count_processes: bool) -> None:
        self.channel = channel
        self.base_bytes = base_bytes
        self.count_processes = count_processes
        self.cells = 0
        self.flags = 0
        # The module is kept and not its dictionary, since Python clears modules at its end, but no dictionaries.
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = self.main
        sys.path.insert(0, "")  # Modules in the working folder can be imported, as in any interactive session.
        _seed_generators()

    def serve(self, token: str) -> NoReturn:
        """Takes commands until the keeper hangs up.

        Only forks come round the outer loop: those in which a cell succeeded, and those that go on from a checkpoint,
        where this process stays behind.
        """
        report: frames.Message = {"kind": "ready"}
        while True:
            connection = self._report(token, report)
            before = _BeforeFork()
            while True:
                command, fds = _receive_or_leave(connection)
                before.restore_working_folder()
                pid = _fork_beside() if command["park"] else _fork_quietly()
                if pid == 0:
                    break
                if command["park"]:
                    continue
                _close(fds)
                if not processes.HAS_PROC:
                    frames.send(connection, {"kind": "forked", "pid": pid})
                _, status = os.waitpid(pid, 0)
                before.restore_offsets()
                frames.send(connection, {"kind": "ended", "status": status})
            connection.close()
            del connection
            before.random.restore()
            token = command["token"]
            if command["park"]:
                before.restore_offsets()
                report = {"kind": "ready"}
                continue
            self._prepare(command, fds)
            if command["script"]:
                self._run_script(command["code"], token)
            report = self._run_cell(command["code"], token)
            if processes.count_threads() > 1:
                _leave_threads_behind()

    def _prepare(self, command: frames.Message, fds: list[int]) -> None:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        _close(fds)
        sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115
        setattr(sys, "__stdin__", sys.stdin)  # noqa: B010 - a name that type checkers hold for final
        if not command["script"]:
            for stream in (sys.__stdout__, sys.__stderr__):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(line_buffering=True)  # What was printed before a timeout is kept.
        isolation.apply_limits(command["limits"], self.base_bytes, self.count_processes, final=command["script"])

    def _run_cell(self, code: str, token: str) -> frames.Message:
        """Returns the report of a cell that succeeded; one that failed ends this process."""
        own_pid = os.getpid()
        self.cells += 1
        failure: frames.Message | None = None
        try:
            value = self._execute(code, f"<cell {self.cells}>")
            text = None if value is None else repr(value)
            del value
        except BaseException as error:
            isolation.lift_limits()
            failure = describe(error)
        else:
            isolation.lift_limits()
        _flush()
        if os.getpid() != own_pid:  # A child that the cell forked and did not end.
            if failure and failure["exit_code"] is None:
                os.write(2, failure["exception"]["traceback"].encode("utf-8", "replace"))
            os._exit(_exit_code(failure))
        if failure:
            self._report(token, failure)
            os._exit(_exit_code(failure))
        clipped = text is not None and len(text) > _TEXT_LIMIT
        return {
            "kind": "done",
            "value": text if text is None else text[:_TEXT_LIMIT],
            "clipped": clipped,
            "mapped": "mmap" in sys.modules,
        }

    def _execute(self, code: str, name: str) -> Any:
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree: Any = compile(code, name, "exec", _AST_ONLY | self.flags, True)
        last = tree.body.pop() if tree.body and type(tree.body[-1]).__name__ == "Expr" else None
        body = compile(tree, name, "exec", self.flags, True)
        self.flags |= body.co_flags & _FUTURE_FLAGS
        if last is None:
            exec(body, self.main.__dict__)
            return None
        expression = compile(ast.Expression(last.value), name, "eval", self.flags, True)
        exec(body, self.main.__dict__)
        return eval(expression, self.main.__dict__)

    def _run_script(self, code: str, token: str) -> NoReturn:
        """Runs a program as ``python main.py`` does, interpreter shutdown included, and exits with its code."""
        own_pid = os.getpid()
        path = os.path.join(os.getcwd(), "main.py")
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(code)
        self.main.__dict__["__file__"] = path
        self.main.__dict__.setdefault("__cached__", None)
        sys.argv[:] = ["main.py"]
        sys.path[0] = os.getcwd()
        linecache.cache["main.py"] = (len(code), None, code.splitlines(True), "main.py")
        exit_code = 0
        try:
            exec(compile(code, "main.py", "exec", 0, True), self.main.__dict__)
        except SystemExit as error:
            exit_code = _system_exit_code(error)
        except BaseException as error:
            exit_code = 1
            error.__traceback__ = _foreign_frames(error.__traceback__)
            failure = describe(error)
            sys.excepthook(type(error), error, error.__traceback__)
            if os.getpid() == own_pid:
                self._report(token, failure).close()
        ctypes.pythonapi.Py_Exit(exit_code)
        raise AssertionError("Py_Exit returned")

    def _report(self, token: str, report: frames.Message) -> socket.socket:
        _fill_standard_descriptors()
        connection = _socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.channel)
        frames.send(connection, dict(report, token=token, pid=os.getpid()))
        return connection


class _RandomState:
    """The state of ``random``, which reseeds itself in the child of a fork."""

    def __init__(self) -> None:
        self._generator = getattr(sys.modules.get("random"), "_inst", None)
        self._state = self._generator.getstate() if self._generator is not None else None

    def restore(self) -> None:
        """Puts it back, in the child."""
        if self._generator is not None:
            self._generator.setstate(self._state)


class _BeforeFork:
    """What a fork shares with its parent, or loses."""

    def __init__(self) -> None:
        self.random = _RandomState()
        try:
            self._folder: str | None = os.getcwd()
        except OSError:
            self._folder = None
        self._offsets: list[tuple[int, int, int]] = []
        for name in os.listdir("/dev/fd"):
            fd = int(name)
            try:
                if fd > 2 and stat.S_ISREG(os.fstat(fd).st_mode):
                    self._offsets.append((fd, os.lseek(fd, 0, os.SEEK_CUR), fcntl.fcntl(fd, fcntl.F_GETFL)))
            except OSError:
                continue

    def restore_working_folder(self) -> None:
        """Enters the working folder anew, in the parent: a failed cell may have had it replaced by one of the same name."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)

    def restore_offsets(self) -> None:
        """Puts back, in the parent, the offsets and flags of open files, which the child shares."""
        for fd, offset, flags in self._offsets:
            os.lseek(fd, offset, os.SEEK_SET)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _leave_threads_behind() -> None:
    """Goes on in a fork, which has only this thread, so that nothing changes the state behind the next cell's back."""
    random_state = _RandomState()
    if _fork_quietly():
        while True:
            signal.pause()
    random_state.restore()


def _seed_generators() -> None:
    """Makes every session, and every replay of one, start alike."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None:
            module.seed(0)


def describe(error: BaseException) -> frames.Message:
    """Returns the report of an uncaught exception, its texts bounded, whatever its methods do."""
    exit_code = _system_exit_code(error) if isinstance(error, SystemExit) else None
    error.__traceback__ = _foreign_frames(error.__traceback__)
    try:
        message = str(error)
    except BaseException:
        message = "<exception str() failed>"
    try:
        lines = traceback.TracebackException(type(error), error, error.__traceback__).format()
        text = "".join(lines)
    except BaseException:
        text = f"{type(error).__name__}: {message}\n"
    exception = {"name": _clip(type(error).__name__), "message": _clip(message), "traceback": _clip(text)}
    return {"kind": "failed", "exception": exception, "exit_code": exit_code, "oom": isinstance(error, MemoryError)}


def _foreign_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leaves out the frames of this file at the top of a traceback."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _clip(text: str) -> str:
    half = _TEXT_LIMIT // 2
    return text if len(text) <= _TEXT_LIMIT else f"{text[:half]}\n[...]\n{text[-half:]}"


def _system_exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return int(error.code) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _exit_code(failure: dict[str, Any] | None) -> int:
    if failure is None:
        return 0
    return 1 if failure["exit_code"] is None else int(failure["exit_code"])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:
            continue


def _fill_standard_descriptors() -> None:
    """Puts something where a cell closed a standard descriptor, so that nothing else comes to lie there."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Takes the lowest number that is free.


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _receive_or_leave(connection: socket.socket) -> tuple[frames.Message, list[int]]:
    try:
        return frames.receive(connection, max_fds=3)
    except (EOFError, OSError):
        os._exit(0)


def _fork_beside() -> int:
    """Forks a process that is not this one's child but the keeper's, which takes orphans in; returns 0 there."""
    child = _fork_quietly()
    if child == 0:
        if _fork_quietly():
            os._exit(0)
        return 0
    os.waitpid(child, 0)
    return child


def _fork_quietly() -> int:
    """Forks without the warning of Python 3.12 about threads, which the cells' authors can do nothing about."""
    if sys.version_info < (3, 12) or processes.count_threads() == 1:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
