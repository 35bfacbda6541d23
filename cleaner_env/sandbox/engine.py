"""Finds a Docker engine: cheaply, to know whether there is one, and for use, through the ``docker`` package."""

from __future__ import annotations

import importlib.util
import stat
from typing import Any, Final
from urllib.parse import quote

from cleaner_env.extras import optional_packages
from cleaner_env.sandbox.container import OWNER_LABEL, remove_container
from cleaner_env.sandbox.engine_socket import LOOK_TIMEOUT_S, NoEngineError, check_engine, connected, socket_path
from cleaner_env.sandbox.owner import Owner

__all__ = ["connect", "engine_has_image", "remove_orphans"]

_TIMEOUT_S: Final = 60


def engine_has_image(image: str) -> bool:
    """Whether an engine answers at ``DOCKER_HOST``, has the image, and can be used; without an engine found out at once."""
    if importlib.util.find_spec("docker") is None:
        return False
    path = socket_path()
    if path is None:
        return _remote_engine_has_image(image)
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with connected(path) as connection:
            connection.sendall(f"GET /images/{quote(image)}/json HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            return connection.recv(64).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False


def connect() -> Any:
    """Returns the low-level client of the ``docker`` package.

    Raises:
        MissingExtraError: The package is not installed.
        NoEngineError: No engine answers.
    """
    with optional_packages("the docker sandbox"):
        import docker
    check_engine()  # The package leaves an open socket behind for each attempt that fails.
    try:
        return docker.from_env(timeout=_TIMEOUT_S).api
    except docker.errors.DockerException as error:
        raise NoEngineError(f"no Docker engine answers: {error}") from None


def remove_orphans(api: Any) -> list[str]:
    """Removes the containers of processes of this machine that have ended; returns their ids."""
    removed = []
    for container in api.containers(all=True, filters={"label": OWNER_LABEL}):
        owner = Owner.parse(container["Labels"].get(OWNER_LABEL, ""))
        if owner is not None and owner.is_dead():
            remove_container(api, container["Id"])
            removed.append(str(container["Id"]))
    return removed


def _remote_engine_has_image(image: str) -> bool:
    import docker
    import requests

    try:
        docker.from_env(timeout=int(LOOK_TIMEOUT_S)).api.inspect_image(image)
    except (docker.errors.DockerException, requests.RequestException):
        return False
    return True
