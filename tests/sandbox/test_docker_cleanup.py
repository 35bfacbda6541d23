from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox import ContainerLimits, DockerSandbox, Limits, LocalSandbox, Sandbox, Session, make_sandbox
from cleaner_env.sandbox.container import OWNER_LABEL, create_container
from cleaner_env.sandbox.engine import connect, engine_has_image, remove_orphans
from cleaner_env.sandbox.owner import Owner


@pytest.fixture
def api(docker_image) -> Any:
    client = connect()
    yield client
    client.close()


def containers_of(api: Any, pid: int) -> list[str]:
    found = []
    for container in api.containers(all=True, filters={"label": OWNER_LABEL}):
        owner = Owner.parse(container["Labels"][OWNER_LABEL])
        if owner is not None and owner.pid == pid:
            found.append(container["Id"])
    return found


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_backend_keeps_the_contract(docker_sandbox) -> None:
    assert isinstance(docker_sandbox, Sandbox)
    with docker_sandbox.open() as session:
        assert isinstance(session, Session)
    facts = docker_sandbox.describe()
    assert (facts["backend"], facts["network"], facts["security_boundary"]) == ("docker", "closed", True)


def test_nothing_is_left_of_what_was_closed_or_forgotten(docker_image, api, eventually) -> None:
    mine = set(containers_of(api, os.getpid()))
    sandbox = DockerSandbox(docker_image)
    closed, forgotten, running = sandbox.open(), sandbox.open(), sandbox.open()
    thread = threading.Thread(target=running.run, args=("import time; time.sleep(60)", None, Limits(wall_s=60)))
    thread.start()
    assert len(set(containers_of(api, os.getpid())) - mine) >= 3
    lost = forgotten.container_id
    closed.close()
    del forgotten
    gc.collect()
    assert eventually(lambda: lost not in containers_of(api, os.getpid()))
    sandbox.close()
    sandbox.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert eventually(lambda: set(containers_of(api, os.getpid())) == mine)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.open()


def test_no_descriptor_is_left(docker_image) -> None:
    with DockerSandbox(docker_image, warm=0) as sandbox, sandbox.open() as session:
        session.run("1")
    gc.collect()
    before = open_descriptors()
    with DockerSandbox(docker_image, warm=1) as sandbox:
        sessions = [sandbox.open() for _ in range(3)]
        sessions[0].run("import os; os._exit(1)")
    del sandbox, sessions
    gc.collect()
    assert open_descriptors() <= before


HOST = """
import sys, threading, time
from cleaner_env.sandbox import Limits, DockerSandbox
sandbox = DockerSandbox({image!r})
sessions = [sandbox.open() for _ in range(2)]
code = "import subprocess\\nsubprocess.Popen(['sleep', '{marker}'], start_new_session=True).wait()"
for session in sessions:
    threading.Thread(target=session.run, args=(code,), kwargs={{"limits": Limits(wall_s=600)}}, daemon=True).start()
time.sleep(600)
"""


def test_a_client_killed_leaves_nothing(docker_image, api, processes, marker, eventually) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST.format(image=docker_image, marker=marker)])
    try:
        assert eventually(lambda: len(processes(f"sleep {marker}")) >= 2, 60)
        assert len(containers_of(api, host.pid)) >= 2
    finally:
        host.kill()
        host.wait()
    assert eventually(lambda: processes(f"sleep {marker}") == [])
    assert eventually(lambda: containers_of(api, host.pid) == [])


def test_orphans_are_removed_and_others_are_not(docker_image, api, monkeypatch, eventually) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    owner = Owner.this_process()
    orphan_owner = Owner(owner.host, dead.pid, owner.started)
    made = {}
    for whose in (orphan_owner, Owner("elsewhere", dead.pid, owner.started), owner):
        monkeypatch.setattr(Owner, "this_process", staticmethod(lambda whose=whose: whose))
        made[whose] = create_container(api, docker_image, "python3", (), ContainerLimits())
        made[whose].wait_until_ready()
    monkeypatch.undo()
    orphan = made[orphan_owner].container_id
    assert remove_orphans(api) == [orphan]
    left = {container["Id"] for container in api.containers(all=True, filters={"label": OWNER_LABEL})}
    assert {channel.container_id for channel in made.values()} - left == {orphan}
    for channel in made.values():
        channel.close()
    gone = {channel.container_id for channel in made.values()}
    assert eventually(lambda: not gone & {c["Id"] for c in api.containers(all=True, filters={"label": OWNER_LABEL})})


def test_a_container_killed_is_an_infrastructure_error_and_the_session_is_replayed(docker_sandbox, api) -> None:
    with docker_sandbox.open() as session:
        session.run("a = [1]")
        token = session.checkpoint()
        session.run("a.append(2)")
        used = session.container_id
        api.kill(used)
        execution = session.run("a.append(3)")
        assert execution.status == "infrastructure_error"
        assert session.run("a").value == "[1, 2]"
        assert session.container_id != used
        session.rollback(token)
        assert session.run("a").value == "[1]"


def test_a_container_that_died_while_it_waited_is_not_handed_out(docker_image, api, eventually) -> None:
    with DockerSandbox(docker_image, warm=0) as sandbox:
        with sandbox.open() as session:
            used = session.container_id
        with sandbox.open() as session:  # It is ready again, and goes back with the answer unread.
            assert session.container_id == used
        api.kill(used)
        assert eventually(lambda: used not in containers_of(api, os.getpid()))
        with sandbox.open() as session:
            assert session.container_id != used
            assert session.run("1").value == "1"


def test_a_container_that_hangs_is_given_up(docker_sandbox, api, monkeypatch, eventually) -> None:
    with docker_sandbox.open() as session:
        session.run("a = 1")
        used = session.container_id
        api.pause(used)
        monkeypatch.setattr("cleaner_env.sandbox.channel._REPLY_GRACE_S", 0.3)
        assert session.run("a", limits=Limits(wall_s=0.2)).status == "infrastructure_error"
        monkeypatch.undo()
        assert session.run("a").value == "1"
        assert eventually(lambda: used not in containers_of(api, os.getpid()))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # The docker package leaves sockets open.
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_restart_of_the_engine_is_survived(docker_engine, docker_image, way, eventually) -> None:
    if docker_engine is None:
        pytest.skip("this engine is not ours to restart")

    def run(code: str) -> None:
        executions.append(session.run(code, limits=Limits(wall_s=60)))

    executions = []
    with DockerSandbox(docker_image) as sandbox, sandbox.open() as session:
        assert session.run("a = [1]\nopen('f', 'w').write('1')").ok
        thread = threading.Thread(target=run, args=("a.append(2)\nimport time; time.sleep(60)",))
        thread.start()
        getattr(docker_engine, way)()
        thread.join(timeout=30)
        thread = threading.Thread(target=run, args=("(a, open('f').read())",))
        thread.start()  # It waits for the engine.
        docker_engine.start()
        thread.join(timeout=60)
        assert [execution.status for execution in executions] == ["infrastructure_error", "ok"], executions
        assert executions[1].value == "([1], '1')"
        with sandbox.open() as other:
            assert other.run("1").ok
    api = connect()
    assert eventually(lambda: remove_orphans(api) == [] and len(containers_of(api, os.getpid())) <= 2)
    api.close()


def test_no_engine_is_a_clear_error(docker_image, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with DockerSandbox(docker_image, engine_wait_s=0) as sandbox:
        with pytest.raises(SandboxError, match="no Docker engine answers"):
            sandbox.open()
        assert sandbox.run_script("1").status == "infrastructure_error"


def test_a_missing_image_says_how_to_build_it(docker_image) -> None:
    with (
        DockerSandbox("cleaner-env-no-such-image:latest") as sandbox,
        pytest.raises(SandboxError, match="cleaner sandbox build"),
    ):
        sandbox.open()


def test_an_image_without_python_says_so(docker_image) -> None:
    with DockerSandbox(docker_image, python="no-python") as sandbox, pytest.raises(SandboxError, match="no-python"):
        sandbox.open()


@pytest.mark.parametrize("options", [{"memory_mb": 0}, {"processes": "9"}, {"cpus": float("nan")}])
def test_container_limits_are_positive_numbers(options) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"ContainerLimits.{name} must be a positive number, got {value!r}"):
        ContainerLimits(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preload": "numpy"}, "'numpy'"),
        ({"limits": 4}, "4"),
        ({"container_limits": Limits()}, "ContainerLimits"),
        ({"warm": -1}, "-1"),
        ({"no_such_option": 1}, "no_such_option"),
    ],
)
def test_wrong_options(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sandbox("docker", **options)


def test_auto_takes_docker_where_it_has_the_image_and_says_so(docker_image, monkeypatch, caplog, tmp_path) -> None:
    monkeypatch.setattr("cleaner_env.sandbox.factory.DEFAULT_IMAGE", docker_image)
    with caplog.at_level(logging.INFO), make_sandbox("auto") as sandbox:
        assert sandbox.name == "docker"
    assert "sandbox: docker" in caplog.text
    with make_sandbox("auto", namespaces=()) as sandbox:
        assert isinstance(sandbox, LocalSandbox)
    assert not engine_has_image("cleaner-env-no-such-image:latest")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert not engine_has_image(docker_image)
    with caplog.at_level(logging.INFO), make_sandbox("auto") as sandbox:
        assert sandbox.name == "local"
    assert "sandbox: local" in caplog.text


def test_preloaded_modules_are_there(docker_image) -> None:
    with DockerSandbox(docker_image, preload=("numpy", "no_such_module"), warm=0) as sandbox:
        assert sandbox.describe()["preload"] == ("numpy",)
        with sandbox.open() as session:
            assert session.run("import sys; 'numpy' in sys.modules").value == "True"


def test_a_forked_child_has_its_own_containers(docker_image) -> None:
    code = f"""
import os
from cleaner_env.sandbox import DockerSandbox
sandbox = DockerSandbox({docker_image!r}, warm=0)
session = sandbox.open()
session.run("a = [1]")
used = session.container_id
pid = os.fork()
if pid == 0:
    print("child", session.run("a.append(2); a").value, session.container_id != used, flush=True)
    sandbox.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("parent", session.run("a").value, session.container_id == used)
sandbox.close()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "child [1, 2] True\nparent [1] True\n"
