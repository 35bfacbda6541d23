"""The socket that a Docker engine listens on: looked at without the ``docker`` package, which is slow to import."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from cleaner_env.errors import SandboxError

__all__ = ["LOOK_TIMEOUT_S", "NoEngineError", "check_engine", "connected", "socket_path"]

LOOK_TIMEOUT_S: Final = 2.0
_DEFAULT_ADDRESS: Final = "unix:///var/run/docker.sock"


class NoEngineError(SandboxError):
    """No engine answers, for now."""


def socket_path() -> Path | None:
    """Returns the path of the Unix socket at ``DOCKER_HOST``, ``None`` where the engine is reached in another way."""
    address = os.environ.get("DOCKER_HOST") or _DEFAULT_ADDRESS
    return Path(address.removeprefix("unix://")) if address.startswith("unix://") else None


def connected(path: Path) -> socket.socket:
    """Returns a socket connected to a path; raises ``OSError``."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(LOOK_TIMEOUT_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def check_engine() -> None:
    """Raises `NoEngineError` where nobody listens; of engines elsewhere nothing can be said so cheaply.

    The ``docker`` package leaves an open socket behind for each attempt that fails.
    """
    path = socket_path()
    if path is None:
        return
    try:
        connected(path).close()
    except OSError as error:
        raise NoEngineError(f"no Docker engine answers at unix://{path}: {error.strerror or error}") from None
