"""The sandbox of Docker: each session in a hardened container of its own, taken from a pool of warm ones."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.extras import require_package
from cleaner_env.sandbox import engine
from cleaner_env.sandbox.asynchronous import in_thread
from cleaner_env.sandbox.channel import Channel
from cleaner_env.sandbox.container import ContainerChannel, ContainerLimits, create_container, remove_container
from cleaner_env.sandbox.engine_socket import NoEngineError, check_engine
from cleaner_env.sandbox.protocol import Execution, Limits
from cleaner_env.sandbox.replies import infrastructure_error
from cleaner_env.sandbox.session import ReplayedSession

__all__ = ["DEFAULT_IMAGE", "DockerSandbox", "DockerSession"]

DEFAULT_IMAGE: Final = "cleaner-env-sandbox:latest"
_RETRY_S: Final = 0.5
_log = logging.getLogger(__name__)


class DockerSandbox:
    """Runs code in containers.

    A session has a container to itself: no network, read-only files but the session's own, a cap on memory, processes and
    processors, no capabilities, no other user's rights, and no system calls but those that Python programs use. When it is
    closed every process in the container is killed and every file removed before the container serves another session, and
    a container in which that fails is thrown away. No container outlives this process: they end with the connection.

    What cannot be rolled back: bytes taken out of a pipe or a socket that an earlier cell made, and memory shared between
    processes. Named shared memory, threads and child processes end with their cell. A cell that is not ordinary Python and
    kills the sandbox's own processes in its container loses the session, which is then replayed.

    Args:
        image: The image, built with ``cleaner sandbox build``; any with a CPython of 3.8 or later will do.
        preload: Modules that each container imports before its first session, where installed, so that sessions have them
            at no cost.
        limits: The default limits of a cell or script.
        python: The interpreter in the image.
        container_limits: What a container may use, whatever the limits of its cells.
        warm: Containers kept ready ahead of need.
        reuse: Whether a container serves more than one session, one after another. Without, a session costs the start of a
            container, a third of a second or so of processor time.
        engine_wait_s: Seconds to wait for an engine that does not answer, so that its restart is survived.

    Raises:
        ConfigError: An option has the wrong type.
        MissingExtraError: The ``docker`` package is not installed.
    """

    name = "docker"

    def __init__(
        self,
        image: str = DEFAULT_IMAGE,
        preload: Sequence[str] = (),
        limits: Limits | None = None,
        python: str = "python3",
        container_limits: ContainerLimits | None = None,
        warm: int = 1,
        reuse: bool = True,
        engine_wait_s: float = 30.0,
    ) -> None:
        require_package("docker", "the docker sandbox")
        if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
            raise ConfigError(f"preload must be a sequence of module names, got {preload!r}")
        for option, value, kind in (
            ("limits", limits, Limits),
            ("container_limits", container_limits, ContainerLimits),
        ):
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{option} must be a {kind.__name__}, got {value!r}")
        if not isinstance(warm, int) or warm < 0:
            raise ConfigError(f"warm must be a number of containers, got {warm!r}")
        self.image = image
        self.preload = tuple(preload)
        self.limits = limits or Limits()
        self.python = python
        self.container_limits = container_limits or ContainerLimits()
        self.warm = warm
        self.reuse = reuse
        self.engine_wait_s = engine_wait_s
        self._lock = threading.Lock()
        self._api: Any = None
        self._idle: deque[ContainerChannel] = deque()
        self._filling: threading.Thread | None = None
        self._sessions: weakref.WeakSet[DockerSession] = weakref.WeakSet()
        self._closed = False
        _sandboxes.add(self)

    def open(self) -> DockerSession:
        """Opens a fresh session, in a container of the pool where there is one.

        Raises:
            SandboxError: The engine does not answer, or has not got the image; or the sandbox is closed.
        """
        session = DockerSession(self)
        with self._lock:
            self._sessions.add(session)
        return session

    async def aopen(self) -> DockerSession:
        """Opens a fresh session without blocking the event loop; raises as `open` does."""
        return await in_thread(self.open)

    def run_script(self, code: str, stdin: str | None = None, limits: Limits | None = None) -> Execution:
        """Runs a program as ``python main.py`` in a fresh process and an empty folder, to its end."""
        try:
            with self.open() as session:
                return session._run(code, stdin, limits, script=True)
        except SandboxError as error:
            return infrastructure_error(str(error))

    def describe(self) -> Mapping[str, object]:
        """Says what this sandbox is and which protections it got; starts a container to find out.

        Raises:
            SandboxError: As `open` does.
        """
        channel = self._connect()
        facts = channel.facts
        self._take_back(channel)
        version = self._living_api().version()
        restrictions = facts["restrictions"]
        return {
            "backend": self.name,
            "engine": str(version["Version"]),
            "image": self.image,
            "python": str(facts["python"]),
            "namespaces": ("mount", "pid", "net", "ipc"),
            "network": "closed",
            "filesystem": "read-only outside the session's folder"
            if "writes" in restrictions
            else "read-only outside /sandbox",
            "system_calls": "restricted",
            "rlimits": ("data", "file_size", "open_files", "core"),
            "memory_mb": self.container_limits.memory_mb,
            "processes": self.container_limits.processes,
            "cpus": self.container_limits.cpus,
            "preload": tuple(str(name) for name in facts["preload"]),
            "security_boundary": True,
        }

    def close(self) -> None:
        """Ends all sessions and removes all containers. May be called twice."""
        with self._lock:
            self._closed = True
            filling, api = self._filling, self._api
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        if filling is not None:
            filling.join()
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for channel in idle:
            self._discard(channel)
        if api is not None:
            api.close()

    def __enter__(self) -> DockerSandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _connect(self) -> ContainerChannel:
        """Returns the channel to a ready session, from the pool or else of a new container."""
        while True:
            with self._lock:
                channel = self._idle.popleft() if self._idle else None
            if channel is None:
                break
            try:
                channel.wait_until_ready()
            except SandboxError:
                self._discard(channel)
                continue
            if not channel.is_alive():  # It died while it waited, perhaps with the engine.
                self._discard(channel)
                continue
            self._fill()
            return channel
        channel = self._create()
        try:
            channel.wait_until_ready()
        except SandboxError:
            self._discard(channel)
            raise
        self._fill()
        return channel

    def _take_back(self, channel: Channel) -> None:
        """Gives a container to the next session, or throws it away."""
        assert isinstance(channel, ContainerChannel)
        try:
            if not self.reuse:
                raise SandboxError("containers are used once")
            channel.request_fresh_session()
        except SandboxError:
            self._discard(channel)
            return
        with self._lock:
            if not self._closed:
                self._idle.append(channel)
                return
        self._discard(channel)

    def _discard(self, channel: ContainerChannel) -> None:
        channel.close()
        remove_container(self._api, channel.container_id)

    def _create(self) -> ContainerChannel:
        """Starts a container; waits a while for an engine that does not answer.

        Raises:
            SandboxError: The engine refuses, or does not answer.
        """
        import docker
        import requests

        give_up = time.monotonic() + self.engine_wait_s
        while True:
            try:
                api = self._living_api()
                check_engine()
                return create_container(api, self.image, self.python, self.preload, self.container_limits)
            except docker.errors.ImageNotFound:
                raise SandboxError(
                    f"the Docker engine has no image {self.image!r}; build it with: cleaner sandbox build"
                ) from None
            except docker.errors.APIError as error:
                message = f"the Docker engine refuses: {error.explanation or error}"
                if not error.is_server_error():
                    raise SandboxError(message) from None
            except (docker.errors.DockerException, requests.RequestException, OSError) as error:
                message = f"the Docker engine does not answer: {error}"
            except NoEngineError as error:
                message = str(error)
            if time.monotonic() > give_up:
                raise SandboxError(message)
            time.sleep(_RETRY_S)

    def _living_api(self) -> Any:
        """Returns the client; the first time it also clears away what dead processes left."""
        with self._lock:
            if self._closed:
                raise SandboxError("this sandbox is closed; make a new one with make_sandbox()")
            if self._api is None:
                api = engine.connect()
                for container in engine.remove_orphans(api):
                    _log.info("removed the container %s of a process that has ended", container[:12])
                weakref.finalize(self, api.close)
                self._api = api
            return self._api

    def _fill(self) -> None:
        """Has containers started in the background until as many are warm as wanted."""
        with self._lock:
            if self._closed or len(self._idle) >= self.warm or (self._filling and self._filling.is_alive()):
                return
            self._filling = threading.Thread(target=_fill_pool, args=(weakref.ref(self),), daemon=True)
            self._filling.start()

    def _forget_processes(self) -> None:
        """In a forked child: what runs is the parent's. Sessions start anew, and replay their cells, when next used."""
        self._lock = threading.Lock()
        self._api = None
        self._idle = deque()
        self._filling = None
        for session in list(self._sessions):
            session._forget_parent()


class DockerSession(ReplayedSession):
    """A session of a `DockerSandbox`."""

    @property
    def container_id(self) -> str | None:
        """The container this session is in, ``None`` when it is closed or lost."""
        return self._channel.container_id if isinstance(self._channel, ContainerChannel) else None


def _fill_pool(reference: weakref.ref[DockerSandbox]) -> None:
    """Starts containers for a sandbox for as long as it lives and wants more."""
    while True:
        sandbox = reference()
        if sandbox is None or sandbox._closed or len(sandbox._idle) >= sandbox.warm:
            return
        try:
            channel = sandbox._create()
        except SandboxError as error:
            _log.info("no spare container: %s", error)
            return
        with sandbox._lock:
            if not sandbox._closed:
                sandbox._idle.append(channel)
                continue
        sandbox._discard(channel)
        return


_sandboxes: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()


def _forget_parent() -> None:
    for sandbox in list(_sandboxes):
        sandbox._forget_processes()


os.register_at_fork(after_in_child=_forget_parent)
