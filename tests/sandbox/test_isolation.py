from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

import cleaner_env
from cleaner_env.sandbox import LocalSandbox


@pytest.fixture
def session(isolated):
    with isolated.open() as session:
        yield session


def need(sandbox: LocalSandbox, namespace: str) -> None:
    if namespace not in sandbox.describe()["namespaces"]:
        pytest.skip(f"the kernel gives no {namespace} namespace here")


@pytest.mark.parametrize("namespaces", [None, ()])
def test_the_description_says_what_was_got(namespaces) -> None:
    with LocalSandbox(namespaces=namespaces) as sandbox:
        facts = sandbox.describe()
    assert facts["backend"] == "local"
    assert facts["security_boundary"] is False
    assert facts["network"] == ("closed" if "net" in facts["namespaces"] else "open")
    assert facts["python"].count(".") == 2


def test_nothing_is_claimed_without_namespaces() -> None:
    with LocalSandbox(namespaces=()) as sandbox:
        facts = sandbox.describe()
    assert (facts["namespaces"], facts["network"], facts["filesystem"]) == ((), "open", "as the user's")


def test_the_network_is_closed(isolated) -> None:
    need(isolated, "net")
    code = (
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('192.0.2.1', 80), 2)\n"
        "    print('open')\n"
        "except OSError:\n"
        "    print('closed')"
    )
    assert isolated.run_script(code).stdout == "closed\n"


def test_a_server_of_the_host_cannot_be_reached(isolated, session) -> None:
    need(isolated, "net")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with LocalSandbox(namespaces=()) as bare, bare.open() as outside:
            assert outside.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).close()").ok
        execution = session.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        assert execution.exception.name == "ConnectionRefusedError"


def test_a_sessions_own_loopback_works(isolated, session) -> None:
    need(isolated, "net")
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "server.accept()[0].send(b'hello')\n"
        "client.recv(5)"
    )
    assert session.run(code).value == "b'hello'"


def test_files_outside_are_read_only(isolated, session, tmp_path) -> None:
    need(isolated, "mount")
    target = tmp_path / "file"
    target.write_text("as it was")
    execution = session.run(f"open({str(target)!r}, 'a')")
    assert execution.exception.message.startswith("[Errno 30]")
    assert session.run(f"open({str(target)!r}).read()").value == "'as it was'"
    assert session.run("import tempfile; tempfile.NamedTemporaryFile().name").ok


def test_the_package_and_its_answers_cannot_be_read(isolated, session) -> None:
    need(isolated, "mount")
    folder = str(Path(cleaner_env.__file__).parent)
    assert session.run(f"import os; os.listdir({folder!r})").value == "[]"
    assert session.run("import cleaner_env.tasks").exception is not None


def test_other_processes_cannot_be_seen(isolated, session) -> None:
    need(isolated, "pid")
    with isolated.open() as other:
        other.run("1")
        assert int(session.run("import os; sum(name.isdigit() for name in os.listdir('/proc'))").value) <= 3
    assert session.run(f"import os; os.kill({os.getpid()}, 0)").exception.name == "ProcessLookupError"


def test_the_keeper_cannot_be_killed_or_looked_into(isolated, session) -> None:
    need(isolated, "pid")
    session.run("a = 1")
    assert session.run("import os, signal\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass").ok
    assert session.run("open('/proc/1/mem', 'rb')").exception.name == "PermissionError"
    assert session.run("import os, signal; os.kill(-1, signal.SIGKILL)").status in ("killed", "ok")
    assert session.run("a").value == "1"


def test_there_are_no_privileges(session) -> None:
    text = session.run("print(open('/proc/self/status').read())").stdout
    capabilities = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith("Cap")}
    assert set(capabilities.values()) == {"0" * 16}
    assert "NoNewPrivs:\t1" in text


def test_unneeded_system_calls_are_refused(isolated, session) -> None:
    if isolated.describe()["system_calls"] != "restricted":
        pytest.skip("this kernel or machine has no filter of system calls")
    code = (
        "import ctypes, os, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "found = [libc.syscall(425, 1, ctypes.create_string_buffer(120)), ctypes.get_errno()]\n"
        "found += [libc.unshare(0x10000000), ctypes.get_errno()]\n"
        "try: socket.socket(40, socket.SOCK_STREAM)\n"
        "except OSError as error: found.append(error.errno)\n"
        "found"
    )
    assert session.run(code).value == "[-1, 38, -1, 1, 97]"
    assert session.run("import socket\nsocket.socket(socket.AF_INET6).close()").ok


def test_shared_memory_ends_with_its_cell(isolated, session) -> None:
    need(isolated, "mount")
    session.run("n = open('/dev/shm/name', 'w').write('x')")
    assert session.run("import os; os.listdir('/dev/shm')").value == "[]"


def test_the_environment_is_its_own(session, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    with LocalSandbox() as sandbox, sandbox.open() as fresh:
        names = set(eval(fresh.run("import os; sorted(os.environ)").value))
        assert fresh.run("os.environ['HOME'] == os.getcwd()").value == "True"
    assert {"HOME", "PATH", "LANG", "TMPDIR"} <= names
    assert "SECRET_TOKEN" not in names


def test_paths_are_the_same_in_every_session(isolated, session) -> None:
    need(isolated, "mount")
    with isolated.open() as other:
        assert session.run("import os; os.getcwd()").value == other.run("import os; os.getcwd()").value


def test_sessions_do_not_share_files(session, isolated) -> None:
    session.run("open('mine', 'w').write('1')")
    with isolated.open() as other:
        assert other.run("import os; os.listdir('.')").value == "[]"


def test_sixty_four_sessions_at_once(isolated) -> None:
    sessions: list = [None] * 64
    failures: list[str] = []

    def work(number: int) -> None:
        sessions[number] = session = isolated.open()
        session.run(f"n = {number}\nopen('n', 'w').write('{number}')")
        session.run("n = -1; 1 / 0" if number % 3 else "import os; os._exit(1)")
        execution = session.run("(n, open('n').read())")
        if execution.value != f"({number}, '{number}')":
            failures.append(f"{number}: {execution}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({session.keeper_pid for session in sessions}) == 64
    for session in sessions:
        session.close()
