"""Makes sandboxes by name, and shares one among all who ask for the same."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox.docker import DEFAULT_IMAGE, DockerSandbox
from cleaner_env.sandbox.engine import engine_has_image
from cleaner_env.sandbox.local import LocalSandbox
from cleaner_env.sandbox.protocol import Execution, Limits, Sandbox, Session

__all__ = ["make_sandbox", "shared_sandbox"]

_COMMON_OPTIONS: Final = frozenset({"preload", "limits"})
_log = logging.getLogger(__name__)
_shared: dict[tuple[object, ...], tuple[Sandbox, set[int]]] = {}
_borrowed_by_sessions: weakref.WeakKeyDictionary[Session, _Borrowed] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # Re-entrant, for a finalizer may run in the middle of anything.


def make_sandbox(name: str = "auto", **options: Any) -> Sandbox:
    """Makes a sandbox of one's own.

    Args:
        name: ``"docker"``; ``"local"``; or ``"auto"``: docker where an engine answers and has the image that
            ``cleaner sandbox build`` makes, else local. Which it was is logged, and is the sandbox's ``name``.
        **options: The backend's own options, see `DockerSandbox` and `LocalSandbox`; for ``"auto"`` those that both have,
            or local ones, which then decide.

    Raises:
        ConfigError: The backend or an option is unknown, or an option's value is wrong.
    """
    _check_name(name)
    known = inspect.signature(DockerSandbox if name == "docker" else LocalSandbox).parameters
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise ConfigError(f"the sandbox {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return BACKENDS[name](**options)


def shared_sandbox(name: str = "auto", **options: Any) -> Sandbox:
    """Borrows this process's only sandbox of that name with those options, so that many users share one warm interpreter.

    Each borrower closes what it got; the sandbox itself ends with the last of them, be it closed or garbage-collected with
    its sessions. A process that was forked has its own.

    Args:
        name: As in `make_sandbox`.
        **options: As in `make_sandbox`.

    Raises:
        ConfigError: As in `make_sandbox`.
    """
    _check_name(name)
    key = (os.getpid(), name, *sorted((option, repr(value)) for option, value in options.items()))
    with _lock:
        if key not in _shared:
            _shared[key] = (make_sandbox(name, **options), set())
        sandbox, borrowers = _shared[key]
        borrowed = _Borrowed(sandbox)
        borrowers.add(id(borrowed))
        borrowed.finalizer = weakref.finalize(borrowed, _give_back, key, id(borrowed))
        return borrowed


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name not in BACKENDS:
        raise ConfigError(f"unknown sandbox {name!r}; choose one of {', '.join(sorted(BACKENDS))}")


def _forget_parent() -> None:
    """In a forked child: another thread may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_parent)


def _give_back(key: tuple[object, ...], borrower: int) -> None:
    with _lock:
        sandbox, borrowers = _shared[key]
        borrowers.discard(borrower)
        if borrowers or key[0] != os.getpid():
            return
        del _shared[key]
    sandbox.close()


def _best(**options: Any) -> Sandbox:
    if options.keys() <= _COMMON_OPTIONS and engine_has_image(DEFAULT_IMAGE):
        _log.info("sandbox: docker, since an engine answers and has the image %s", DEFAULT_IMAGE)
        return DockerSandbox(**options)
    _log.info("sandbox: local, since no Docker engine that has the image %s answers", DEFAULT_IMAGE)
    return LocalSandbox(**options)


BACKENDS: Final[dict[str, Callable[..., Sandbox]]] = {"auto": _best, "docker": DockerSandbox, "local": LocalSandbox}


class _Borrowed:
    """One borrower's handle on a shared sandbox."""

    finalizer: weakref.finalize[[tuple[object, ...], int], _Borrowed]

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name = sandbox.name

    def open(self) -> Session:
        session = self._lender().open()
        _borrowed_by_sessions[session] = self
        return session

    async def aopen(self) -> Session:
        session = await self._lender().aopen()
        _borrowed_by_sessions[session] = self
        return session

    def run_script(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        return self._lender().run_script(code, stdin, limits)

    def describe(self) -> Mapping[str, object]:
        return self._lender().describe()

    def close(self) -> None:
        self.finalizer()

    def _lender(self) -> Sandbox:
        if not self.finalizer.alive:
            raise SandboxError("this sandbox is closed; borrow a new one with shared_sandbox()")
        return self._sandbox

    def __enter__(self) -> _Borrowed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
