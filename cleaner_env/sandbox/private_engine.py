"""Starts a Docker engine of one's own, for tests and benchmarks on machines where none runs; needs root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cleaner_env.errors import SandboxError

__all__ = ["PrivateEngine", "private_engine"]

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
_PLACES: Final = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
_NO_NETWORK: Final = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")


class PrivateEngine:
    """An engine whose data, socket and processes are apart from those of any other.

    Attributes:
        address: What to set ``DOCKER_HOST`` to.
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            SandboxError: It does not start.
        """
        with (self._folder / "log").open("ab") as log:
            folders = [f"--{name}={self._folder / path}" for name, path in _PLACES.items()]
            self._process = subprocess.Popen(
                ["dockerd", *folders, f"--host={self.address}", f"--storage-driver={_driver(self._folder)}", *_NO_NETWORK],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        give_up = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                lines = [line for line in (self._folder / "log").read_text().splitlines() if "level=info" not in line]
                raise SandboxError(f"dockerd did not start: {lines[-1] if lines else 'no message'}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends it, with its containers."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it without giving it time to end its containers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        give_up = time.monotonic() + _STOP_TIMEOUT_S
        while self._has_containerd() and time.monotonic() < give_up:  # It dies with dockerd, but a little later.
            time.sleep(0.05)
        # A zombie that nobody reaps would be taken for the living process of that number.
        (self._folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Ends what is left of it, and removes its folder."""
        self.stop()
        for pid in _processes_of(self._folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(2):  # Some are mounted on top of others.
            for line in reversed(Path("/proc/mounts").read_text().splitlines()):
                target = line.split()[1]
                if target.startswith(f"{self._folder}/"):
                    subprocess.run(["umount", "--lazy", target], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _has_containerd(self) -> bool:
        return any(_name_of(pid) == "containerd" for pid in _processes_of(self._folder))

    def _answers(self) -> bool:
        import docker
        import requests

        if not (self._folder / "docker.sock").exists():
            return False
        try:
            with contextlib.closing(docker.DockerClient(self.address, timeout=5)) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.RequestException):
            return False


@contextlib.contextmanager
def private_engine() -> Iterator[PrivateEngine]:
    """Runs an engine, and leaves nothing of it behind.

    Raises:
        SandboxError: It cannot be started here; the message says why.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SandboxError("a Docker engine needs Linux and root")
    missing = [program for program in ("dockerd", "runc", "containerd") if shutil.which(program) is None]
    if missing:
        raise SandboxError(f"{missing[0]} is not installed; on Debian: apt-get install --no-install-recommends docker.io")
    folder = Path(tempfile.mkdtemp(prefix="dk.", dir="/tmp"))  # A short path: that of a socket has 107 bytes at most.
    folder.chmod(0o711)
    engine = PrivateEngine(folder)
    try:
        engine.start()
        yield engine
    finally:
        engine.clean_up()


def _driver(folder: Path) -> str:
    """The storage driver: overlays cannot lie on overlays."""
    kinds = {line.split()[1]: line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}
    parents = [folder, *folder.parents]
    below = next(kinds[str(path)] for path in parents if str(path) in kinds)
    has_overlay = "overlay" in Path("/proc/filesystems").read_text().split()
    return "overlay2" if has_overlay and below != "overlay" else "vfs"


def _processes_of(folder: Path) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and f"{folder}/".encode() in (path / "cmdline").read_bytes():
                yield int(path.name)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
