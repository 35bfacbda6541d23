from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleaner_env.errors import CleanerError
from cleaner_env.sandbox import DockerSandbox, LocalSandbox, Sandbox, Session
from cleaner_env.sandbox.image import build_image
from cleaner_env.sandbox.private_engine import PrivateEngine, private_engine

MODES = {"isolated": None, "bare": ()}
IMAGE = "cleaner-env-sandbox:test"
_skipped: list[str] = []


@pytest.fixture(scope="session", params=[*MODES, "docker"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The local sandbox with all that the kernel gives, and with no namespaces at all; and containers."""
    if request.param == "docker":
        yield request.getfixturevalue("docker_sandbox")
        return
    with LocalSandbox(namespaces=MODES[request.param]) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.open() as session:
        yield session


@pytest.fixture(scope="session")
def isolated() -> Iterator[LocalSandbox]:
    with LocalSandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def docker_sandbox(docker_image: str) -> Iterator[DockerSandbox]:
    with DockerSandbox(docker_image) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def docker_image(docker_engine: PrivateEngine | None) -> Iterator[str]:
    """An image with numpy, made without a registry; one that an engine of the user's has already is used and left."""
    from cleaner_env.sandbox.engine import connect, engine_has_image

    if engine_has_image(IMAGE):
        yield IMAGE
        return
    build_image(IMAGE, packages=("numpy",), method="root")
    yield IMAGE
    if docker_engine is None:
        client = connect()
        client.remove_image(IMAGE, force=True)
        client.close()


@pytest.fixture(scope="session")
def docker_engine(install_debian: Callable[[str, str], None]) -> Iterator[PrivateEngine | None]:
    """An engine: ``None`` where one answers already, else one started for the tests; skips where neither can be had."""
    pytest.importorskip("docker")
    if _engine_answers():
        yield None
        return
    install_debian("docker.io", "dockerd")
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(private_engine())
        except CleanerError as error:
            _skipped.append(str(error))
            pytest.skip(f"no Docker engine: {error}")
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = engine.address
        stack.callback(_set_address, before)
        yield engine


def _engine_answers() -> bool:
    from cleaner_env.sandbox.engine import connect

    try:
        client = connect()
        answers = bool(client.ping())
        client.close()
    except Exception:
        return False
    return answers


def _set_address(address: str | None) -> None:
    if address is None:
        del os.environ["DOCKER_HOST"]
    else:
        os.environ["DOCKER_HOST"] = address


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in dict.fromkeys(_skipped):
        terminalreporter.write_line(f"The tests of the docker sandbox were skipped: {reason}.", yellow=True)


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """A function that lists the living processes whose command line holds a text."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    return _processes


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """A function that waits until something is true, and says whether it became so."""
    return _eventually


_counter = itertools.count()


@pytest.fixture
def marker() -> str:
    """A number of seconds to sleep for that no other process sleeps for."""
    return f"{86_400 + os.getpid() % 10_000}.{next(_counter):03}7"


def _processes(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if text.encode() in command and state not in (b"Z", b"X"):
                found.append(int(folder.name))
    return found


def _eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True
