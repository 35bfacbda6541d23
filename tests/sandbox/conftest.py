from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleaner_env.sandbox import LocalSandbox
from cleaner_env.sandbox.local import LocalSession

MODES = {"isolated": None, "bare": ()}


@pytest.fixture(scope="session", params=list(MODES))
def sandbox(request: pytest.FixtureRequest) -> Iterator[LocalSandbox]:
    """The sandbox with all that the kernel gives, and with no namespaces at all."""
    with LocalSandbox(namespaces=MODES[request.param]) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: LocalSandbox) -> Iterator[LocalSession]:
    with sandbox.open() as session:
        yield session


@pytest.fixture(scope="session")
def isolated() -> Iterator[LocalSandbox]:
    with LocalSandbox() as sandbox:
        yield sandbox


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
