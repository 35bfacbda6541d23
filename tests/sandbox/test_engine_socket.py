from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from cleaner_env.sandbox.engine import engine_has_image
from cleaner_env.sandbox.engine_socket import NoEngineError, check_engine
from cleaner_env.sandbox.owner import Owner


@pytest.fixture
def address(tmp_path, monkeypatch):
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    return path


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder", "a socket that nobody listens on"])
def test_whatever_is_there_instead_of_an_engine(address, what) -> None:
    if what == "a file":
        address.touch()
    elif what == "a folder":
        address.mkdir()
    elif what.startswith("a socket"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(address))
    assert not engine_has_image("image")
    with pytest.raises(NoEngineError, match=r"docker\.sock"):
        check_engine()


@pytest.mark.parametrize(
    ("answer", "has_it"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n{}", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"200", False),
        (b"", False),
        (b"\xff" * 100, False),
    ],
)
def test_what_something_answers(address, answer, has_it) -> None:
    pytest.importorskip("docker")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(4096))
                connection.sendall(answer)

        requests: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert engine_has_image("name:tag/x") is has_it
        thread.join()
    assert requests[0].startswith(b"GET /images/name%3Atag/x/json HTTP/1.0\r\n")


def test_looking_for_an_engine_does_not_import_its_package(tmp_path) -> None:
    code = (
        "import sys\nfrom cleaner_env.sandbox import make_sandbox\n"
        "make_sandbox('auto').close()\nprint([name for name in ('docker', 'requests', 'asyncio') if name in sys.modules])"
    )
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_owner_is_dead_when_its_process_is() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = Owner.this_process()
    try:
        from cleaner_env.sandbox.owner import _start_of

        other = Owner(own.host, process.pid, _start_of(process.pid))
        assert not other.is_dead()
        assert Owner(own.host, process.pid, "7").is_dead()  # Its number was given to another process.
    finally:
        process.communicate()
    assert other.is_dead()
    assert not own.is_dead()
    assert not Owner("elsewhere", process.pid, other.started).is_dead()


@pytest.mark.parametrize("text", ["", "nonsense", "host/x:1", "/1:2", "host"])
def test_what_no_owner_wrote(text) -> None:
    assert Owner.parse(text) is None
