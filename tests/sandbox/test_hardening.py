"""Proves each limit of the containers by an attack that works without that one limit and fails with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cleaner_env.sandbox import ContainerLimits, DockerSandbox, Limits, container
from cleaner_env.sandbox.container import OWNER_LABEL, AttachedStream, host_config, remove_container
from cleaner_env.sandbox.owner import Owner

LIMITS = ContainerLimits(memory_mb=128, processes=40, cpus=0.25)
UNFILTERED = ["no-new-privileges", "seccomp=unconfined"]


@pytest.fixture(scope="module")
def api(docker_image: str) -> Iterator[Any]:
    from cleaner_env.sandbox.engine import connect

    client = connect()
    yield client
    client.close()


@pytest.fixture
def run(api: Any, docker_image: str) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a program in a container that is hardened but for what is given; returns its exit code and its output."""
    made: list[str] = []

    def run_program(code: str, user: str = "65534:65534", **other: Any) -> tuple[int, str]:
        config = host_config(api, LIMITS)
        config["AutoRemove"] = False
        config.update(other)
        made.append(
            api.create_container(
                docker_image, ["-c", code], entrypoint=["python3"], user=user, host_config=config,
                labels={OWNER_LABEL: str(Owner.this_process())},
            )["Id"]
        )  # fmt: skip
        stream = AttachedStream(api.attach_socket(made[-1], params={"stdout": 1, "stderr": 1, "stream": 1}))
        api.start(made[-1])
        text = b"".join(iter(lambda: stream.recv(1 << 16), b"")) + stream.last_words
        stream.close()
        return int(api.wait(made[-1])["StatusCode"]), text.decode("utf-8", "replace")

    yield run_program
    for container_id in made:
        remove_container(api, container_id)


def test_network(run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\nprint('connected')"
        assert run(code, NetworkMode="host", SecurityOpt=UNFILTERED) == (0, "connected\n")
        exit_code, text = run(code, SecurityOpt=UNFILTERED)
    assert (exit_code, "ConnectionRefusedError" in text) == (1, True)


def test_files_of_the_image(run) -> None:
    code = "open('/tmp/x', 'w').write('x')\nprint('written')"
    assert run(code, ReadonlyRootfs=False) == (0, "written\n")
    assert "Read-only file system" in run(code)[1]


def test_memory_and_swap(run) -> None:
    code = "data = bytearray(300 << 20)\ndata[::4096] = b'x' * len(data[::4096])\nprint('held')"
    assert run(code, Memory=0, MemorySwap=0) == (0, "held\n")
    assert run(code) == (137, "")


def test_processes(run) -> None:
    code = "import os, signal\nfor n in range(60):\n    if os.fork() == 0: signal.pause()\nprint('forked')"
    assert run(code, PidsLimit=0) == (0, "forked\n")
    assert "BlockingIOError" in run(code)[1]


def test_processors(run) -> None:
    code = (
        "import os, time\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: pass\n"
        "path = next(p for p in ('/sys/fs/cgroup/cpu/cpu.stat', '/sys/fs/cgroup/cpu.stat') if os.path.exists(p))\n"
        "print(dict(line.split() for line in open(path)).get('nr_throttled', '0'))"
    )
    assert run(code, CpuQuota=0) == (0, "0\n")
    exit_code, text = run(code)
    assert (exit_code, int(text) > 0) == (0, True)


def test_capabilities(run) -> None:
    code = "import os\nopen('/dev/shm/x', 'w').close()\nos.chown('/dev/shm/x', 1, 1)\nprint('given away')"
    assert run(code, user="0:0", CapDrop=[]) == (0, "given away\n")
    assert "Error" in run(code, user="0:0")[1]


def test_new_privileges(run) -> None:
    code = "print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"
    assert "NoNewPrivs:\\t0" in run(code, SecurityOpt=["seccomp=unconfined"])[1]
    assert "NoNewPrivs:\\t1" in run(code)[1]


def test_user(run) -> None:
    code = "import os\nprint(os.getuid(), os.getgid(), os.getgroups())"
    assert run(code, user="0:0")[1].startswith("0 0")
    assert run(code) == (0, "65534 65534 [65534]\n")


def test_shared_memory(run) -> None:
    code = "open('/dev/shm/x', 'wb').write(bytes(32 << 20))\nprint('filled')"
    tmpfs = {"/sandbox": "size=1m"}
    assert run(code, IpcMode="private", Tmpfs=tmpfs) == (0, "filled\n")
    assert "No space left" in run(code)[1]
    assert "FileNotFoundError" in run(code, Tmpfs=tmpfs)[1]  # There is none but what we mount.


def test_output_is_not_kept_on_disk(run, api) -> None:
    run("print('flood')", LogConfig={"Type": "json-file", "Config": {}})
    ids = [c["Id"] for c in api.containers(all=True, filters={"label": OWNER_LABEL, "status": "exited"})]
    assert any(b"flood" in api.logs(container_id) for container_id in ids)
    before = set(ids)
    run("print('flood')")
    (new,) = {c["Id"] for c in api.containers(all=True, filters={"label": OWNER_LABEL, "status": "exited"})} - before
    with contextlib.suppress(Exception):
        assert b"flood" not in api.logs(new)


def test_folder_is_bounded(run) -> None:
    code = (
        "import os\n"
        "try:\n"
        "    for n in range(20): open(f'/sandbox/{n}', 'wb').write(bytes(20 << 20))\n"
        "    print('filled')\n"
        "except OSError as error: print(error.strerror)"
    )
    big = {"/sandbox": "uid=65534,size=1g", "/dev/shm": "size=1m"}
    memory = {"Memory": 1 << 30, "MemorySwap": 1 << 30}
    assert run(code, Tmpfs=big, **memory) == (0, "filled\n")
    assert run(code, **memory) == (0, "No space left on device\n")


@pytest.mark.parametrize(
    ("code", "name", "unlimited"),
    [
        ("import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))", "core", None),
        ("held = []\nfor n in range(1500): held.append(open('/dev/null'))\nprint('opened')", "nofile", 4096),
        ("open('/sandbox/x', 'wb').truncate(400 << 20)\nprint('written')", "fsize", -1),
    ],
)
def test_ulimits(run, api, code, name, unlimited) -> None:
    others = [ulimit for ulimit in host_config(api, LIMITS)["Ulimits"] if ulimit["Name"] != name]
    if unlimited is None:
        assert run(code)[1] == "(0, 0)\n"
        return
    lifted = [*others, {"Name": name, "Soft": unlimited, "Hard": unlimited}]
    assert run(code, Ulimits=lifted)[0] == 0
    exit_code, text = run(code)
    assert exit_code
    assert "Too many open files" in text or "File too large" in text


CALL = (
    "import ctypes, os\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def call(number, *arguments):\n"
    "    if libc.syscall(*map(ctypes.c_long, (number, *arguments))) < 0:\n"
    "        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
)
ATTACKS = {
    "internet": "import socket\nsocket.socket(socket.AF_INET)",
    "hypervisor": "import socket\nsocket.socket(40, socket.SOCK_STREAM)",
    "netlink": "import socket\nsocket.socket(16, socket.SOCK_RAW)",
    "io_uring": CALL + "space = ctypes.create_string_buffer(120)\ncall(425, 1, ctypes.addressof(space))",
    "shmget": CALL + "call({'x86_64': 29, 'aarch64': 194}[os.uname().machine], 77, 4096, 0o1600)",
    "msgget": CALL + "call({'x86_64': 68, 'aarch64': 186}[os.uname().machine], 77, 0o1600)",
    "user namespace": CALL + "call({'x86_64': 272, 'aarch64': 97}[os.uname().machine], 0x10000000)",
    "keyring": CALL + "call({'x86_64': 250, 'aarch64': 219}[os.uname().machine], 0, -3, 1)",
}
MAY_BE_MISSING = {"hypervisor", "io_uring", "user namespace"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_system_calls(run, attack) -> None:
    code = ATTACKS[attack] + "\nprint('done')"
    memory = {"Ulimits": [], "Memory": 1 << 30, "MemorySwap": 1 << 30}
    exit_code, text = run(code, SecurityOpt=UNFILTERED, **memory)
    if attack not in MAY_BE_MISSING:
        assert (exit_code, text) == (0, "done\n")
    elif exit_code:
        pytest.skip(f"this kernel has nothing to close: {text.strip().splitlines()[-1]}")
    exit_code, text = run(code, **memory)
    assert (exit_code, "Error" in text) == (1, True)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in ("shmget", "msgget")])
def test_system_calls_where_the_engine_has_no_filter(docker_image, monkeypatch, attack) -> None:
    """The worker's own filter stands by itself."""
    monkeypatch.setattr(container, "seccomp_profile", lambda: "unconfined")
    with DockerSandbox(docker_image, warm=0) as sandbox, sandbox.open() as session:
        assert session.run("[line for line in open('/proc/self/status') if 'filters:' in line]").value.count("\\t1") == 1
        assert session.run(ATTACKS[attack]).status == "error"


def test_what_programs_need_still_works(docker_sandbox) -> None:
    code = (
        "import numpy, threading, subprocess, socket, asyncio, tempfile, os, sqlite3, ctypes, multiprocessing, select\n"
        "a, b = socket.socketpair()\n"
        "t = threading.Thread(target=print); t.start(); t.join()\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "open('/dev/stdout', 'w').write('again')\n"
        "os.symlink('a', 'b'); os.mkdir('d'); os.rename('b', 'd/b')\n"
        "subprocess.run(['sh', '-c', 'echo from a shell'], check=True)\n"
        "float(numpy.linalg.det(numpy.eye(200)))"
    )
    with docker_sandbox.open() as session:
        execution = session.run(code)
        assert (execution.status, execution.value) == ("ok", "1.0"), execution
        assert "from a shell" in execution.stdout


def test_the_sandboxs_own_files_and_processes_are_out_of_reach(docker_sandbox) -> None:
    with docker_sandbox.open() as session:
        if "session's folder" not in str(docker_sandbox.describe()["filesystem"]):
            pytest.skip("this kernel has no Landlock")
        session.run("a = 1\nopen('kept', 'w').write('kept')")
        for attack in (
            "open('/sandbox/x', 'w')",
            "import os; os.mkdir('/sandbox/store/x')",
            "import os; name = os.listdir('/sandbox/store')[0]; open(f'/sandbox/store/{name}', 'w')",
            "import os; os.rename('/sandbox/files', '/sandbox/other')",
            "open('/proc/1/mem', 'rb')",
            "import os; os.listdir('/proc/1/fd')",
            "import os; os.kill(1, 0)",
            "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (10, 10))",
            "import os; os.sched_setaffinity(1, {0})",
            "import os; os.setpriority(os.PRIO_PROCESS, 1, 19)",
        ):
            execution = session.run(attack)
            assert execution.exception is not None, attack
            assert execution.exception.name == "PermissionError", execution
        assert session.run("(a, open('kept').read())").value == "(1, 'kept')"


LEAVE = """
import os, shutil, subprocess, sys, threading
for folder in ('.', os.environ['TMPDIR'], '/dev/shm', '/sandbox', '/sandbox/store', '/tmp'):
    try:
        with open(os.path.join(folder, 'secret'), 'w') as file: n = file.write('from the first')
        os.mkdir(os.path.join(folder, 'closed'), 0)
    except OSError: pass
import json; json.secret = 'from the first'
sys.path.append('secret'); os.environ['SECRET'] = '1'; os.umask(0o77); os.nice(5)
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: signal.pause()
"""
LOOK = """
import os, json, sys
found = [path for top in ('/sandbox', '/dev/shm', '/tmp') for path, folders, files in os.walk(top) if 'secret' in files]
found += [name for name in ('SECRET',) if name in os.environ] + [p for p in sys.path if p == 'secret']
found += [hasattr(json, 'secret')] if hasattr(json, 'secret') else []
processes = [name for name in os.listdir('/proc') if name.isdigit()]
(found, len(processes), os.umask(0o22), os.nice(0), os.listdir('.'), os.listdir('/dev/shm'))
"""


def test_nothing_of_a_session_reaches_the_next_in_its_container(docker_image) -> None:
    with DockerSandbox(docker_image, warm=0, preload=("json",)) as sandbox:
        with sandbox.open() as clean:
            expected = clean.run(LOOK).value
            used = clean.container_id
        with sandbox.open() as first:
            assert first.container_id == used
            assert first.run(LEAVE).ok
            assert first.run(DAEMON + "import time; time.sleep(9)").status in ("error", "timeout")
        with sandbox.open() as second:
            assert second.container_id == used
            assert second.run(LOOK).value == expected
        assert expected is not None
        assert expected.startswith("([], ")


def test_without_reuse_each_session_has_a_new_container(docker_image) -> None:
    with DockerSandbox(docker_image, warm=0, reuse=False) as sandbox:
        with sandbox.open() as first:
            used = first.container_id
        with sandbox.open() as second:
            assert second.container_id != used


def test_a_container_out_of_memory_is_the_cells_fault_and_hurts_no_other(docker_image) -> None:
    code = (
        "import os, time\n"
        "for n in range(4): os.fork()\n"
        "data = bytearray(60 << 20)\n"
        "data[::4096] = b'x' * len(data[::4096])\n"
        "time.sleep(5)"
    )
    small = ContainerLimits(memory_mb=128)
    with (
        DockerSandbox(docker_image, warm=0, container_limits=small) as sandbox,
        sandbox.open() as session,
        sandbox.open() as other,
    ):
        session.run("a = [1]")
        other.run("b = 2")
        assert session.run(code, limits=Limits(wall_s=20, memory_mb=400)).status in ("oom", "killed")
        assert session.run("a").value == "[1]"
        assert other.run("b").value == "2"
