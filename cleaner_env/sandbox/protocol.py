"""What every sandbox backend offers: sessions that run cells and forget the failed ones.

A *cell* is a piece of Python. A *session* is an interpreter that keeps its state from one successful cell to the next; a
cell that fails leaves nothing behind, in the interpreter or in the working folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from cleaner_env.errors import ConfigError

__all__ = ["CellException", "Execution", "Limits", "Sandbox", "Session", "Status"]

Status: TypeAlias = Literal["ok", "error", "exit", "timeout", "oom", "output_limit", "killed", "infrastructure_error"]
"""How a cell ended.

``ok``: ran to its end, state kept. ``error``: an uncaught exception, or a script's non-zero exit. ``exit``: the cell ended
its interpreter (``sys.exit``, ``os._exit``). ``timeout``: the wall or CPU limit. ``oom``: the memory limit.
``output_limit``: more output than allowed. ``killed``: a signal, such as a segmentation fault.
``infrastructure_error``: the sandbox itself failed; the code is not to blame. Everything but ``ok`` is rolled back.
"""


@dataclass(frozen=True)
class Limits:
    """What one cell or script may use.

    Attributes:
        wall_s: Seconds on the clock.
        cpu_s: Seconds of processor time, of one process; ``None`` for no limit besides the clock.
        memory_mb: MiB of private memory, of one process.
        output_bytes: Bytes of standard output and of standard error, each.
        processes: Processes and threads alive at a time.
        file_mb: MiB of the largest file that may be written.
    """

    wall_s: float = 4.0
    cpu_s: float | None = None
    memory_mb: int = 512
    output_bytes: int = 65_536
    processes: int = 64
    file_mb: int = 16

    def __post_init__(self) -> None:
        for name in ("wall_s", "cpu_s", "memory_mb", "output_bytes", "processes", "file_mb"):
            value = getattr(self, name)
            if value is None and name == "cpu_s":
                continue
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"Limits.{name} must be a positive number, got {value!r}")


@dataclass(frozen=True)
class CellException:
    """The uncaught exception of a cell.

    Attributes:
        name: Its class, such as ``"NameError"``.
        message: ``str()`` of it.
        traceback: The traceback as Python prints it, frames of the sandbox itself left out.
    """

    name: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Execution:
    """The outcome of one cell or script.

    Attributes:
        status: See `Status`.
        stdout: Standard output, bytes that are not UTF-8 replaced.
        stderr: Standard error, likewise; an uncaught exception's traceback is in ``exception`` for cells, here for scripts.
        value: ``repr()`` of the cell's last expression, ``None`` where there is none or its value is ``None``.
        exception: The uncaught exception, where one is known.
        duration_s: Seconds on the host's clock; never taken from the program.
        truncated: Whether output was cut at its limit.
        exit_code: The exit code where the process ended by itself, else ``None``.
        signal: The signal's name, such as ``"SIGSEGV"``, where one ended the process, else ``None``.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    exception: CellException | None = None
    duration_s: float = 0.0
    truncated: bool = False
    exit_code: int | None = None
    signal: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status == "ok"


@runtime_checkable
class Session(Protocol):
    """One interpreter with persistent state. Threads that use it at the same time wait for each other.

    Example:
        >>> from cleaner_env.sandbox import make_sandbox
        >>> with make_sandbox("local") as sandbox, sandbox.open() as session:
        ...     _ = session.run("path = [1]")
        ...     start = session.checkpoint()
        ...     left = session.run("path.append(2); path").value
        ...     session.rollback(start)
        ...     right = session.run("path.append(3); path").value
        >>> left, right
        ('[1, 2]', '[1, 3]')
    """

    def run(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a cell; its effects stay exactly when the status is ``ok``. Never raises for what the code does."""

    async def arun(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a cell as `run` does, without blocking the event loop.

        Where the awaiting task is cancelled the interpreter is killed at once, and the next cell finds the state that the
        successful cells before it left, replayed. Where a cell prints something else when replayed (the time, say, or a
        process id), the session is lost, for its history would be untrue: cells end with ``infrastructure_error``.
        """

    def checkpoint(self) -> str:
        """Keeps the present state, files included; returns a token for `rollback`.

        It costs two forks, and the memory that later cells change. A session has at most 32 at a time.

        Raises:
            SandboxError: There are too many, or the sandbox failed.
        """

    def rollback(self, token: str) -> None:
        """Goes back to a checkpoint, as often as wished, to earlier and later ones alike.

        Where the state itself was lost, the next cell has the cells that led to it replayed.

        Raises:
            ConfigError: The session has no such checkpoint.
            SandboxError: The session is closed.
        """

    def release(self, token: str) -> None:
        """Gives up a checkpoint and the memory that it holds; raises as `rollback` does."""

    def close(self) -> None:
        """Kills the interpreter and all that it started, and removes its working folder. May be called twice."""

    def __enter__(self) -> Session: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Sandbox(Protocol):
    """A backend: opens sessions and runs stand-alone scripts. Safe to use from several threads."""

    name: str

    def open(self) -> Session:
        """Opens a fresh session.

        Raises:
            SandboxError: The backend cannot start one.
        """

    async def aopen(self) -> Session:
        """Opens a fresh session without blocking the event loop; raises as `open` does."""

    def run_script(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a program in a fresh process with real standard input, and waits for its end."""

    def describe(self) -> Mapping[str, object]:
        """Says what the backend is and which protections it really got on this machine."""

    def close(self) -> None:
        """Ends all sessions. May be called twice."""

    def __enter__(self) -> Sandbox: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
