"""One hardened container: how it is made, and the stream to the first process in it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cleaner_env.errors import ConfigError
from cleaner_env.sandbox.channel import START_TIMEOUT_S, Channel
from cleaner_env.sandbox.client import session_environment
from cleaner_env.sandbox.engine_socket import NoEngineError, check_engine
from cleaner_env.sandbox.owner import Owner
from cleaner_env.sandbox.seccomp import seccomp_profile
from cleaner_env.sandbox.worker import frames

__all__ = ["OWNER_LABEL", "ContainerChannel", "ContainerLimits", "create_container", "host_config", "remove_container"]

OWNER_LABEL: Final = "cleaner-env.owner"
_NOBODY: Final = "65534:65534"
_FILES_MB: Final = 320  # Five times what the tree may hold: room for copies old and new, and for what a cell writes.
_SHARED_MEMORY_MB: Final = 16
_PERIOD_US: Final = 100_000
_LAST_WORDS_BYTES: Final = 2_000
_STDERR: Final = 2
_WORKER: Final = Path(__file__).parent / "worker"


@dataclass(frozen=True)
class ContainerLimits:
    """What all processes of one container may use together.

    Attributes:
        memory_mb: MiB of memory, files in the working folder included. There is no swap on top.
        processes: Processes and threads alive at a time, those of the sandbox included.
        cpus: Processors, in fractions. A little more than one lets the sandbox end one cell while the next begins.
    """

    memory_mb: int = 1024
    processes: int = 256
    cpus: float = 2.0

    def __post_init__(self) -> None:
        for name in ("memory_mb", "processes", "cpus"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"ContainerLimits.{name} must be a positive number, got {value!r}")


class ContainerChannel(Channel):
    """The stream to the keeper in a container, over the engine's attach connection.

    Attributes:
        container_id: The container.
        facts: What the first process said of itself, once it is ready.
    """

    def __init__(self, api: Any, container_id: str, stream: AttachedStream) -> None:
        super().__init__(stream)
        self.container_id = container_id
        self.facts: frames.Message = {}
        self._api = api
        self._stream = stream

    def wait_until_ready(self) -> None:
        """Waits for the session. See `Channel.wait_until_ready`."""
        while True:
            message = self.receive(START_TIMEOUT_S)
            if message.get("kind") == "facts":
                self.facts = message
            if message.get("kind") == "ready":
                return

    def is_alive(self) -> bool:
        """Whether the container is there, as far as is known without asking it."""
        return self._stream.is_open()

    def request_fresh_session(self) -> None:
        """Has the present session ended, without waiting for the next to be ready; raises `SandboxError`."""
        self.send({"kind": "end"}, timeout_s=1.0)

    def _last_words(self) -> str:
        lines = self._stream.last_words.decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _end_keeper(self) -> None:
        remove_container(self._api, self.container_id)


class AttachedStream:
    """A socket on which a container's outputs come interleaved, each piece with a header."""

    def __init__(self, attachment: Any) -> None:
        self.last_words = b""
        self._attachment = attachment  # Keeps the HTTP response alive, to which the socket belongs.
        self._socket: socket.socket = getattr(attachment, "_sock", attachment)
        self._received = bytearray()
        self._left = 0
        _open_streams.add(self)

    def settimeout(self, timeout_s: float | None, /) -> None:
        self._socket.settimeout(timeout_s)

    def sendall(self, data: bytes, /) -> None:
        self._socket.sendall(data)

    def recv(self, size: int, /) -> bytes:
        """Receives some of the standard output; sets what comes on standard error aside."""
        while not self._left:
            kind, length = struct.unpack(">BxxxL", self._take(8, whole=True) or bytes(8))
            if kind == _STDERR:
                self.last_words = (self.last_words + self._take(length, whole=True))[-_LAST_WORDS_BYTES:]
            elif length:
                self._left = length
            else:
                return b""
        data = self._take(min(size, self._left), whole=False)
        self._left -= len(data)
        return data

    def is_open(self) -> bool:
        """Whether the other side has not hung up."""
        try:
            self._socket.settimeout(0)
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except (OSError, ValueError) as error:
            return isinstance(error, ValueError)  # An encrypted connection cannot be looked at in this way.

    def shutdown(self, how: int, /) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._attachment.close()
        self._socket.close()

    def _take(self, size: int, whole: bool) -> bytes:
        """Takes bytes off the socket; fewer, or none, only at its end, or where less will do."""
        while len(self._received) < (size if whole else min(size, 1)):
            more = self._socket.recv(1 << 16)
            if not more:
                break
            self._received += more
        data = bytes(self._received[:size])
        del self._received[:size]
        return data if len(data) == size or not whole else b""


def create_container(
    api: Any, image: str, python: str, preload: tuple[str, ...], limits: ContainerLimits
) -> ContainerChannel:
    """Makes a container and starts the worker in it; the session is ready after `ContainerChannel.wait_until_ready`.

    Args:
        api: The low-level client of the ``docker`` package.
        image: The image's name; any with a CPython of 3.8 or later will do.
        python: The interpreter in it.
        preload: Modules that the first process imports.
        limits: What the container may use.

    Raises:
        docker.errors.DockerException: The engine refuses.
    """
    created = api.create_container(
        image,
        command=["-s", "-B", "-c", _source("loader")],
        entrypoint=[python],
        stdin_open=True,
        user=_NOBODY,
        working_dir="/",
        environment=session_environment(),
        labels={OWNER_LABEL: str(Owner.this_process())},
        network_disabled=True,
        healthcheck={"test": ["NONE"]},
        host_config=host_config(api, limits),
    )
    container_id = str(created["Id"])
    try:
        stream = AttachedStream(api.attach_socket(container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}))
        channel = ContainerChannel(api, container_id, stream)
        api.start(container_id)
        channel.send({"sources": _sources(), "options": {"preload": list(preload)}}, START_TIMEOUT_S)
    except BaseException:
        remove_container(api, container_id)
        raise
    return channel


def remove_container(api: Any, container_id: str) -> None:
    """Kills and removes a container and its volumes; does nothing where it is gone, or the engine is."""
    import docker
    import requests

    with contextlib.suppress(docker.errors.DockerException, requests.RequestException, NoEngineError):
        check_engine()
        api.remove_container(container_id, force=True, v=True)


def host_config(api: Any, limits: ContainerLimits) -> Any:
    """Returns what the container is hardened with, as the engine takes it."""
    memory = limits.memory_mb << 20
    own = "rw,nosuid,nodev,noexec,uid=65534,gid=65534"
    return api.create_host_config(
        auto_remove=True,
        network_mode="none",
        ipc_mode="none",
        read_only=True,
        tmpfs={
            "/sandbox": f"{own},mode=0700,size={_FILES_MB}m,nr_inodes=16k",
            "/dev/shm": f"{own},mode=0700,size={_SHARED_MEMORY_MB}m,nr_inodes=1k",
        },
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=limits.processes,
        cpu_period=_PERIOD_US,  # And not "NanoCpus", which has to be no more than the machine has.
        cpu_quota=int(limits.cpus * _PERIOD_US),
        cap_drop=["ALL"],
        security_opt=["no-new-privileges", f"seccomp={seccomp_profile()}"],
        log_config={"type": "none"},
        oom_score_adj=500,
        ulimits=[
            {"name": "core", "soft": 0, "hard": 0},
            {"name": "nofile", "soft": 1024, "hard": 1024},
            {"name": "fsize", "soft": _FILES_MB << 20, "hard": _FILES_MB << 20},
            {"name": "memlock", "soft": 0, "hard": 0},
        ],
    )


def _sources() -> dict[str, str]:
    names = sorted(path.stem for path in _WORKER.glob("*.py"))
    return {"worker" if name == "__init__" else f"worker.{name}": _source(name) for name in names if name != "loader"}


def _source(name: str) -> str:
    return (_WORKER / f"{name}.py").read_text(encoding="utf-8")


_open_streams: weakref.WeakSet[AttachedStream] = weakref.WeakSet()


def _close_inherited_streams() -> None:
    """Lets a forked child go of its parent's containers, which could not see the end of the parent otherwise."""
    for stream in list(_open_streams):
        stream.close()


os.register_at_fork(after_in_child=_close_inherited_streams)
