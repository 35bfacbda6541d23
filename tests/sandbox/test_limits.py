from __future__ import annotations

import threading

import pytest

from cleaner_env.sandbox import Limits

STUBBORN = """
import signal
for s in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
    signal.signal(s, signal.SIG_IGN)
print('running', flush=True)
while True:
    try:
        while True: pass
    except BaseException: pass
"""


def test_only_the_outside_can_stop_a_stubborn_program(sandbox) -> None:
    execution = sandbox.run_script(STUBBORN, limits=Limits(wall_s=0.5))
    assert (execution.status, execution.stdout) == ("timeout", "running\n")


def test_one_long_operation_in_c_is_stopped(session) -> None:
    session.run("a = 1")
    assert session.run("n = 10 ** (10 ** 9)", limits=Limits(wall_s=0.5)).status in ("timeout", "oom")
    assert session.run("a").value == "1"


def test_output_before_a_timeout_is_kept(session) -> None:
    execution = session.run("print('partial')\nimport time\ntime.sleep(60)", limits=Limits(wall_s=0.4))
    assert (execution.status, execution.stdout, execution.exit_code) == ("timeout", "partial\n", None)


@pytest.mark.parametrize(
    "code", ["class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()", "while True: pass"]
)
def test_representing_the_value_counts_as_well(session, code) -> None:
    assert session.run(code, limits=Limits(wall_s=0.4)).status == "timeout"


def test_processor_time_is_limited_apart_from_the_clock(session) -> None:
    limits = Limits(wall_s=20, cpu_s=0.3)
    assert session.run("import time; time.sleep(0.5)", limits=limits).ok
    assert session.run("while True: pass", limits=limits).status == "timeout"


def test_a_timeout_kills_the_whole_tree(sandbox, processes, marker, eventually) -> None:
    code = (
        "import os, subprocess, time\n"
        f"subprocess.Popen(['sh', '-c', 'sleep {marker}; :'])\n"
        f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        os.execvp('sleep', ['sleep', '{marker}'])\n"
        "    os._exit(0)\n"
        "time.sleep(60)"
    )
    executions = []
    thread = threading.Thread(target=lambda: executions.append(sandbox.run_script(code, limits=Limits(wall_s=2))))
    thread.start()
    assert eventually(lambda: len(processes(f"sleep {marker}")) >= 4)  # They lived.
    thread.join()
    assert executions[0].status == "timeout"
    assert processes(f"sleep {marker}") == []


def test_memory(session) -> None:
    session.run("a = [1]")
    execution = session.run("a.append(bytearray(400 << 20))", limits=Limits(memory_mb=200))
    assert execution.status == "oom"
    assert execution.exception is not None
    assert execution.exception.name == "MemoryError"
    assert session.run("a").value == "[1]"
    assert session.run("len(bytearray(100 << 20))", limits=Limits(memory_mb=200)).ok


def test_memory_of_many_small_objects(session) -> None:
    assert (
        session.run("held = []\nwhile True: held.append('x' * 1000)", limits=Limits(memory_mb=100, wall_s=20)).status
        == "oom"
    )


def test_raising_ones_own_memory_limit_is_noticed(session) -> None:
    code = (
        "import resource, time\n"
        "hard = resource.getrlimit(resource.RLIMIT_DATA)[1]\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))\n"
        "held = bytearray(400 << 20)\n"
        "time.sleep(20)"
    )
    assert session.run(code, limits=Limits(memory_mb=200, wall_s=10)).status == "oom"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_flood_is_cut_while_it_streams(session, stream) -> None:
    execution = session.run(f"import sys\nwhile True: sys.{stream}.write('a' * 1000)", limits=Limits(output_bytes=10_000))
    assert (execution.status, execution.truncated) == ("output_limit", True)
    assert getattr(execution, stream) == "a" * 10_000


def test_output_up_to_the_limit_is_fine(session) -> None:
    execution = session.run("print('a' * 99)", limits=Limits(output_bytes=100))
    assert (execution.status, len(execution.stdout), execution.truncated) == ("ok", 100, False)
    assert session.run("print('a' * 100)", limits=Limits(output_bytes=100)).status == "output_limit"


def test_a_character_cut_by_the_limit_is_left_out(session) -> None:
    execution = session.run("print('\\u20ac' * 50)", limits=Limits(output_bytes=100))
    assert execution.stdout == "\u20ac" * 33


def test_a_flood_that_outruns_its_end(sandbox) -> None:
    execution = sandbox.run_script("import os\nos.write(1, b'b' * 60_000)\nos._exit(0)", limits=Limits(output_bytes=50_000))
    assert (execution.status, len(execution.stdout)) == ("output_limit", 50_000)


def test_a_fork_bomb_is_contained(session) -> None:
    session.run("a = 1")
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert session.run(code, limits=Limits(wall_s=2, processes=20)).status in ("killed", "timeout")
    assert session.run("a").value == "1"


def test_file_size(session) -> None:
    execution = session.run("open('big', 'wb').write(bytes(3 << 20))", limits=Limits(file_mb=2))
    assert execution.status == "error"
    assert execution.exception is not None
    assert execution.exception.name == "OSError"
    assert session.run("import os; os.listdir('.')").value == "[]"


def test_no_core_dumps(session) -> None:
    assert session.run("import resource; resource.getrlimit(resource.RLIMIT_CORE)").value == "(0, 0)"
