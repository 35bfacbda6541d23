from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cleaner_env.errors import SandboxError
from cleaner_env.sandbox import Limits, LocalSandbox, shared_sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(scope="module", params=[None, ()], ids=["isolated", "bare"])
def sandbox(request):
    with LocalSandbox(namespaces=request.param) as sandbox:
        yield sandbox


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_dead_keeper_is_an_infrastructure_error_and_the_session_is_replayed(session) -> None:
    session.run("import random\na = [random.random()]")
    session.run("a.append(3)")
    before = session.run("a").value
    os.kill(session.keeper_pid, signal.SIGKILL)
    execution = session.run("a.append(4)")
    assert execution.status == "infrastructure_error"
    assert execution.stderr
    assert session.run("a").value == before


def test_a_keeper_killed_in_the_middle_of_a_cell(session, processes, marker, eventually) -> None:
    session.run("a = 1")
    executions = []
    code = f"import subprocess\nsubprocess.run(['sleep', '{marker}'])"
    thread = threading.Thread(target=lambda: executions.append(session.run(code, limits=Limits(wall_s=60))))
    thread.start()
    assert eventually(lambda: len(processes(f"sleep {marker}")) == 1)
    os.kill(session.keeper_pid, signal.SIGKILL)
    thread.join()
    assert executions[0].status == "infrastructure_error"
    assert eventually(lambda: processes(f"sleep {marker}") == [])
    assert session.run("a").value == "1"


def test_a_keeper_that_hangs_is_given_up(sandbox, monkeypatch) -> None:
    monkeypatch.setattr("cleaner_env.sandbox.channel._REPLY_GRACE_S", 0.3)
    with sandbox.open() as session:
        session.run("a = 1")
        keeper = session.keeper_pid
        os.kill(keeper, signal.SIGSTOP)
        assert session.run("a", limits=Limits(wall_s=0.2)).status == "infrastructure_error"
        assert session.run("a", limits=Limits(wall_s=10)).value == "1"
        assert session.keeper_pid != keeper


def test_a_replay_that_goes_wrong_ends_the_session(sandbox, tmp_path) -> None:
    with sandbox.open() as session:
        flag = tmp_path / "flag"
        assert session.run(f"import os\nassert not os.path.exists({str(flag)!r})").ok
        flag.touch()
        os.kill(session.keeper_pid, signal.SIGKILL)
        assert session.run("1").status == "infrastructure_error"
        execution = session.run("1")
        assert execution.status == "infrastructure_error"
        assert "replay" in execution.stderr
        assert session.run("1").status == "infrastructure_error"


@pytest.mark.parametrize("cell", ["import time\nprint(time.time())", "import os\nos.urandom(8)"])
def test_what_a_cell_gave_once_is_never_replaced_by_something_else(session, cell) -> None:
    assert session.run(cell).ok
    os.kill(session.keeper_pid, signal.SIGKILL)
    session.run("1")
    execution = session.run("1")
    assert execution.status == "infrastructure_error"
    assert "its cell 1 gave other output when replayed" in execution.stderr


def test_addresses_of_objects_do_not_count_as_output_of_a_replay(session) -> None:
    assert " at 0x" in session.run("a = object()\nprint(a)\na").stdout
    os.kill(session.keeper_pid, signal.SIGKILL)
    session.run("1")
    assert session.run("print(type(a).__name__)").stdout == "object\n"


@pytest.mark.parametrize("namespaces", [None, ()])
def test_a_dead_zygote_is_replaced(namespaces) -> None:
    with LocalSandbox(namespaces=namespaces) as sandbox, sandbox.open() as session:
        session.run("a = 1")
        zygote = sandbox._zygote._process
        assert zygote.poll() is None
        os.kill(zygote.pid, signal.SIGKILL)
        assert session.run("a").value == "1"
        with sandbox.open() as other:
            assert other.run("2").value == "2"
        assert sandbox.run_script("print(3)").stdout == "3\n"


def test_an_interpreter_that_cannot_start_is_a_clear_error(tmp_path) -> None:
    with LocalSandbox(python=tmp_path / "no-python") as sandbox:
        with pytest.raises(SandboxError, match="no-python"):
            sandbox.open()
        assert sandbox.run_script("1").status == "infrastructure_error"
    false = tmp_path / "python"
    false.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    false.chmod(0o700)
    with LocalSandbox(python=false) as sandbox, pytest.raises(SandboxError, match="broken"):
        sandbox.open()


def test_nothing_is_left_of_what_was_closed_or_forgotten(processes, marker, eventually) -> None:
    def busy(session) -> None:
        session.run(
            f"import subprocess, time\nsubprocess.Popen(['sleep', '{marker}'])\ntime.sleep(60)", limits=Limits(wall_s=60)
        )

    gc.collect()
    before = open_descriptors()
    zygotes = set(processes("worker.zygote"))
    sandbox = LocalSandbox()
    closed, forgotten, running = sandbox.open(), sandbox.open(), sandbox.open()
    thread = threading.Thread(target=busy, args=(running,))
    thread.start()
    assert eventually(lambda: len(processes(f"sleep {marker}")) == 1)
    mine = set(processes("worker.zygote")) - zygotes
    assert len(mine) >= 7  # The zygote, and a keeper and an interpreter for each session.
    closed.close()
    keeper = forgotten.keeper_pid
    assert keeper in mine
    del forgotten
    gc.collect()
    assert eventually(lambda: keeper not in processes("worker.zygote"))
    sandbox.close()
    sandbox.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert eventually(lambda: not mine & set(processes("worker.zygote")))
    assert processes(f"sleep {marker}") == []
    with pytest.raises(SandboxError, match="closed"):
        sandbox.open()
    del closed, running, thread, sandbox
    gc.collect()
    assert open_descriptors() == before


def test_a_forgotten_sandbox_ends(processes, eventually) -> None:
    zygotes = set(processes("worker.zygote"))
    sandbox = LocalSandbox()
    session = sandbox.open()
    assert set(processes("worker.zygote")) - zygotes
    del sandbox, session
    gc.collect()
    assert eventually(lambda: set(processes("worker.zygote")) <= zygotes)


HOST = """
import sys, threading, time
from cleaner_env.sandbox import Limits, LocalSandbox
sandbox = LocalSandbox(namespaces={namespaces})
sessions = [sandbox.open() for _ in range(3)]
code = "import subprocess\\nsubprocess.Popen(['sleep', '{marker}'], start_new_session=True).wait()"
for session in sessions:
    threading.Thread(target=session.run, args=(code,), kwargs={{"limits": Limits(wall_s=600)}}, daemon=True).start()
time.sleep(600)
"""


@pytest.mark.parametrize("namespaces", [None, ()])
def test_a_host_killed_leaves_nothing(namespaces, tmp_path, processes, marker, eventually) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST.format(namespaces=namespaces, marker=marker)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert eventually(lambda: len(processes(f"sleep {marker}")) == 3)
        workers = [
            pid for pid in processes("worker.zygote") if str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(workers) >= 10
    finally:
        host.kill()
        host.wait()
    assert eventually(lambda: processes(f"sleep {marker}") == [])
    assert eventually(lambda: not set(workers) & set(processes("worker.zygote")))
    left = [path for path in tmp_path.rglob("*") if path.parent != tmp_path]
    assert left == []


def test_folders_of_a_host_and_a_zygote_killed_together_are_swept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"cleaner-env-{os.getuid()}"
    stale = folder / "1-dead"
    stale.mkdir(parents=True)
    folder.chmod(0o700)
    (stale / "file").write_text("left")
    with LocalSandbox(namespaces=()) as sandbox, sandbox.open() as session:
        assert session.run("1").ok
        assert not stale.exists()
        assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) == []


def test_a_folder_that_someone_else_prepared_is_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"cleaner-env-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with LocalSandbox(namespaces=()) as sandbox, sandbox.open() as session:
        assert str(folder) not in session.run("import os; os.getcwd()").value
        assert session.run("1").ok
    assert list((tmp_path / "elsewhere").iterdir()) == []


def run_python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_forked_child_uses_its_own_worker_and_leaves_the_parents_alone() -> None:
    output = run_python(
        """
        import os, sys
        from cleaner_env.sandbox import shared_sandbox
        sandbox = shared_sandbox("local")
        session = sandbox.open()
        session.run("import os; a = [1]")
        parents_keeper = session.keeper_pid
        pid = os.fork()
        if pid == 0:
            execution = session.run("a.append(2); a")
            print("child", execution.value, session.keeper_pid != parents_keeper, flush=True)
            with shared_sandbox("local") as own, own.open() as other:
                print("child", other.run("1 + 1").value, flush=True)
            session.close()
            sandbox.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("parent", session.run("a").value, session.keeper_pid == parents_keeper)
        """
    )
    assert output == "child [1, 2] True\nchild 2\nparent [1] True\n"


def test_a_child_that_lives_on_does_not_keep_its_parents_workers_alive(processes, eventually, tmp_path) -> None:
    code = """
        import os, time
        from cleaner_env.sandbox import LocalSandbox
        session = LocalSandbox().open()
        pid = os.fork()
        if pid == 0:
            os.close(1), os.close(2)
            time.sleep(600)
            os._exit(0)
        print(pid, session.keeper_pid, flush=True)
        os.kill(os.getpid(), 9)
        """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    child, keeper = map(int, result.stdout.split())
    try:
        assert child in processes("")
        assert eventually(lambda: keeper not in processes("worker.zygote"))
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_interpreter_ends_cleanly_with_sandboxes_open() -> None:
    code = """
        from cleaner_env.sandbox import LocalSandbox, shared_sandbox
        one = LocalSandbox(); session = one.open(); session.run("a = 1")
        other = shared_sandbox("auto").open()
        print(other.run("2").value)
        """
    assert run_python(code) == "2\n"


def test_shared_sandboxes_end_with_their_last_borrower(processes, eventually) -> None:
    zygotes = set(processes("worker.zygote"))
    first, second = shared_sandbox("local", preload=("json",)), shared_sandbox("local", preload=("json",))
    with first.open() as session:
        assert session.run("1").ok
    first.close()
    first.close()
    with pytest.raises(SandboxError, match="closed"):
        first.open()
    with second.open() as session:
        assert session.run("1").ok
    assert set(processes("worker.zygote")) - zygotes
    del second, session
    gc.collect()
    assert eventually(lambda: set(processes("worker.zygote")) <= zygotes)


SOAK = {
    "x = 1": "ok",
    "1 / 0": "error",
    "import os; os._exit(3)": "exit",
    "print('a' * 100_000)": "output_limit",
    "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()": "ok",
    "open('f', 'w').write('x' * 1000)": "ok",
    "import os; _ = os.fork() or os._exit(0)": "ok",
    "import subprocess; _ = subprocess.Popen(['sleep', '77'])": "ok",
    "bytearray(700 << 20)": "oom",
    "import ctypes; ctypes.string_at(0)": "killed",
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)": "killed",
}


def test_many_bad_cells_at_once_disturb_no_other_session(isolated) -> None:
    isolated.describe()  # Starts it.
    before = open_descriptors()
    wrong: list[object] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        with isolated.open() as session:
            session.run(f"mine = {seed}")
            for _ in range(25):
                code = choose.choice(list(SOAK))
                execution = session.run(code, limits=Limits(wall_s=20))
                if execution.status != SOAK[code]:
                    wrong.append((code, execution))
            execution = session.run("mine")
            if execution.value != str(seed):
                wrong.append(execution)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert open_descriptors() == before
