"""Builds the containers' image: from Docker's own Python image, or with no registry from the running Python."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox.docker import DEFAULT_IMAGE
from cleaner_env.sandbox.image_root import make_root

__all__ = ["PACKAGES", "Method", "build_image", "dockerfile"]

Method: TypeAlias = Literal["auto", "registry", "root"]

PACKAGES: Final = ("numpy", "scipy", "sympy")
_LABEL: Final = "cleaner-env.image"


def build_image(
    tag: str = DEFAULT_IMAGE,
    packages: Sequence[str] = PACKAGES,
    method: Method = "auto",
    report: Callable[[str], object] = lambda line: None,
) -> str:
    """Builds the image and returns its id.

    Args:
        tag: Its name.
        packages: What to install in it besides Python, as pip takes it; a bare name of a package that is installed here
            gets the version it has here, so that local and docker sandboxes agree.
        method: ``"registry"``: from ``python:3.x-slim``. ``"root"``: from the interpreter that runs this, with the shared
            libraries and a few programs of this machine; needs no registry, but Linux. ``"auto"``: the first that works.
        report: Gets a line about each step.

    Raises:
        ConfigError: The method is unknown, or cannot be used here.
        SandboxError: The engine, or a step of the build, failed.
    """
    from cleaner_env.sandbox.engine import connect

    if method not in ("auto", "registry", "root"):
        raise ConfigError(f"unknown method {method!r}; choose one of auto, registry, root")
    pinned = [_pinned(package) for package in packages]
    api = connect()
    try:
        if method == "root" or (method == "auto" and not _has_base(api, report)):
            return _build_from_root(api, tag, pinned, report)
        return _build_from_registry(api, tag, pinned, report)
    finally:
        api.close()


def dockerfile(packages: Sequence[str]) -> str:
    """Returns the Dockerfile of the registry's way.

    Example:
        >>> print(dockerfile(["numpy==2.0.0"]).splitlines()[1])
        RUN ["pip", "install", "--no-cache-dir", "--only-binary", ":all:", "numpy==2.0.0"]
    """
    install = ["pip", "install", "--no-cache-dir", "--only-binary", ":all:", *packages]
    lines = [f"FROM {_base()}", *([f"RUN {json.dumps(install)}"] if packages else [])]
    lines += [f"LABEL {_LABEL}=registry", "USER 65534:65534", 'CMD ["python3"]']
    return "\n".join(lines) + "\n"


def _base() -> str:
    return f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"


def _pinned(package: str) -> str:
    try:
        return f"{package}=={importlib.metadata.version(package)}" if package.isidentifier() else package
    except importlib.metadata.PackageNotFoundError:
        return package


def _has_base(api: Any, report: Callable[[str], object]) -> bool:
    import docker
    import requests

    try:
        api.inspect_image(_base())
        return True
    except docker.errors.DockerException:
        pass
    try:
        report(f"pulls {_base()}")
        api.pull(*_base().split(":"))
        api.inspect_image(_base())
        return True
    except (docker.errors.DockerException, requests.RequestException) as error:
        report(f"no registry: {str(error).splitlines()[0][:200]}")
        return False


def _build_from_registry(api: Any, tag: str, packages: list[str], report: Callable[[str], object]) -> str:
    import docker

    context = io.BytesIO()
    text = dockerfile(packages).encode()
    with tarfile.open(fileobj=context, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    context.seek(0)
    report(f"builds {tag} from {_base()}")
    try:
        for event in api.build(fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True):
            if "error" in event:
                raise SandboxError(f"the image was not built: {' '.join(str(event['error']).split())}")
        return str(api.inspect_image(tag)["Id"])
    except docker.errors.DockerException as error:
        raise SandboxError(f"the image was not built: {error}") from None


def _build_from_root(api: Any, tag: str, packages: list[str], report: Callable[[str], object]) -> str:
    import docker

    if sys.platform != "linux":
        raise ConfigError(f"an image can be made without a registry on Linux only, not on {platform.system()}")
    from cleaner_env.sandbox.client import session_environment

    repository, _, version = tag.rpartition(":") if ":" in tag.rpartition("/")[2] else (tag, "", "latest")
    environment = " ".join(f"{name}={value}" for name, value in session_environment().items())
    changes = [f"ENV {environment}", "USER 65534:65534", 'CMD ["python3"]', f"LABEL {_LABEL}=root"]
    with tempfile.TemporaryDirectory(prefix="cleaner-env-image-") as folder:
        root = Path(folder) / "root"
        make_root(root, packages, report)
        report(f"imports {tag}")
        with tempfile.TemporaryFile(dir=folder) as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                archive.add(root, arcname=".", filter=_owned_by_root)
            file.seek(0)
            chunks = iter(lambda: file.read(1 << 20), b"")
            try:
                api.import_image_from_stream(chunks, repository=repository, tag=version, changes=changes)
                return str(api.inspect_image(tag)["Id"])
            except docker.errors.DockerException as error:
                raise SandboxError(f"the image was not built: {error}") from None


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
