"""Runs Python that nobody has read: sessions whose failed cells leave nothing behind, and stand-alone scripts.

Example:
    >>> from cleaner_env.sandbox import Limits, make_sandbox
    >>> with make_sandbox("local") as sandbox, sandbox.open() as session:
    ...     _ = session.run("numbers = [1, 2]")
    ...     failed = session.run("numbers.append(3); numbers.no_such_method()")
    ...     execution = session.run("numbers", limits=Limits(wall_s=2))
    >>> failed.status, failed.exception.name, execution.value
    ('error', 'AttributeError', '[1, 2]')
"""

from __future__ import annotations

from cleaner_env.sandbox.container import ContainerLimits
from cleaner_env.sandbox.docker import DockerSandbox
from cleaner_env.sandbox.factory import make_sandbox, shared_sandbox
from cleaner_env.sandbox.local import LocalSandbox
from cleaner_env.sandbox.protocol import CellException, Execution, Limits, Sandbox, Session, Status

__all__ = [
    "CellException",
    "ContainerLimits",
    "DockerSandbox",
    "Execution",
    "Limits",
    "LocalSandbox",
    "Sandbox",
    "Session",
    "Status",
    "make_sandbox",
    "shared_sandbox",
]
