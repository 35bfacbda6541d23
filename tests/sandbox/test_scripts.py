from __future__ import annotations

import importlib.util

import pytest

from cleaner_env.sandbox import Limits


def test_a_script_is_what_python_would_run(sandbox) -> None:
    code = (
        "import os, sys\nprint(__name__, sys.argv, os.path.basename(__file__), os.listdir('.'), sys.path[0] == os.getcwd())"
    )
    execution = sandbox.run_script(code)
    assert (execution.status, execution.exit_code) == ("ok", 0)
    assert execution.stdout == "__main__ ['main.py'] main.py ['main.py'] True\n"


def test_standard_input_is_real_and_ends(sandbox) -> None:
    code = "import sys\nn = int(input())\nprint(sum(map(int, sys.stdin.readline().split())), repr(sys.stdin.read()))"
    assert sandbox.run_script(code, stdin="3\n1 2 3\n").stdout == "6 ''\n"
    execution = sandbox.run_script("input()")
    assert (execution.status, execution.exit_code) == ("error", 1)
    assert execution.exception is not None
    assert execution.exception.name == "EOFError"


def test_large_standard_input(sandbox) -> None:
    text = "line of text\n" * 200_000
    assert sandbox.run_script("import sys\nprint(len(sys.stdin.read()))", stdin=text).stdout == f"{len(text)}\n"
    assert sandbox.run_script("print('not read')", stdin=text).stdout == "not read\n"


def test_both_outputs_beyond_their_pipes(sandbox) -> None:
    code = "import sys\nsys.stdout.write('a' * 400_000)\nsys.stderr.write('b' * 400_000)\nprint()"
    execution = sandbox.run_script(code, limits=Limits(wall_s=10, output_bytes=1_000_000))
    assert execution.status == "ok"
    assert (execution.stdout, execution.stderr) == ("a" * 400_000 + "\n", "b" * 400_000)


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import os; os._exit(4)", 4, ""),
        ("raise SystemExit('message')", 1, "message\n"),
        ("import sys; sys.exit()", 0, ""),
    ],
)
def test_exit_codes(sandbox, code, exit_code, stderr) -> None:
    execution = sandbox.run_script(code)
    assert (execution.status, execution.exit_code) == ("error" if exit_code else "ok", exit_code)
    assert execution.stderr == stderr


def test_an_uncaught_exception_is_printed_and_reported(sandbox) -> None:
    execution = sandbox.run_script("def f():\n    return {}['k']\nf()")
    assert (execution.status, execution.exit_code) == ("error", 1)
    assert execution.exception is not None
    assert (execution.exception.name, execution.exception.message) == ("KeyError", "'k'")
    assert execution.stderr.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()\n'
    )
    assert "interpreter.py" not in execution.stderr


def test_a_syntax_error_is_the_programs_fault(sandbox) -> None:
    execution = sandbox.run_script("print('a'", stdin="1 2 3\n")
    assert execution.status == "error"
    assert execution.exception is not None
    assert execution.exception.name == "SyntaxError"
    assert "SyntaxError" in execution.stderr


def test_a_script_out_of_memory(sandbox) -> None:
    assert sandbox.run_script("bytearray(800 << 20)", limits=Limits(memory_mb=100)).status == "oom"


def test_markers_on_standard_output_mean_nothing(sandbox) -> None:
    code = 'print(\'@@E\')\nprint(\'{"status": "ok", "exit_code": 0}\')\nimport sys\nsys.exit(3)'
    execution = sandbox.run_script(code)
    assert (execution.status, execution.exit_code) == ("error", 3)
    assert execution.stdout == '@@E\n{"status": "ok", "exit_code": 0}\n'


def test_what_the_interpreter_does_at_its_end_is_done(sandbox) -> None:
    code = (
        "import atexit, io, sys, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "out = io.TextIOWrapper(io.FileIO(1, 'w', closefd=False))\n"
        "out.write('never flushed by hand\\n')\n"
        "class Late:\n"
        "    def __del__(self): print('deleted')\n"
        "late = Late()\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )
    lines = sandbox.run_script(code).stdout.splitlines()
    assert sorted(lines) == ["at exit", "deleted", "never flushed by hand", "thread"]
    assert lines.index("thread") < lines.index("at exit")


def test_a_grandchild_that_holds_the_output_does_not_block(sandbox, processes, marker) -> None:
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{marker}'])\nprint('parent done')"
    execution = sandbox.run_script(code, limits=Limits(wall_s=60))
    assert (execution.status, execution.stdout) == ("ok", "parent done\n")
    assert execution.duration_s < 30
    assert processes(f"sleep {marker}") == []


def test_process_pools_and_numpy(sandbox) -> None:
    code = (
        "import numpy as np\n"
        "from multiprocessing import Pool\n"
        "def sq(x):\n"
        "    return x * x\n"
        "if __name__ == '__main__':\n"
        "    with Pool(2) as p:\n"
        "        print(int(np.sum(p.map(sq, range(10)))), float((np.eye(300) @ np.eye(300)).sum()))"
    )
    execution = sandbox.run_script(code, limits=Limits(wall_s=60, memory_mb=1024))
    assert (execution.status, execution.stdout) == ("ok", "285 300.0\n")


def test_spawned_process_pools(isolated) -> None:
    code = (
        "import multiprocessing\n"
        "def sq(x):\n"
        "    return x * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as p:\n"
        "        print(p.map(sq, range(4)))"
    )
    execution = isolated.run_script(code, limits=Limits(wall_s=60))
    assert (execution.status, execution.stdout) == ("ok", "[0, 1, 4, 9]\n")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_plots_wait_for_no_window(isolated) -> None:
    code = (
        "import matplotlib\n"
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\n"
        "plt.show()\n"
        "print(matplotlib.get_backend().lower())"
    )
    execution = isolated.run_script(code, limits=Limits(wall_s=120))
    assert (execution.status, execution.stdout) == ("ok", "agg\n")


def test_scripts_know_nothing_of_each_other(sandbox) -> None:
    sandbox.run_script("import builtins\nbuiltins.leak = 1\nopen('leak', 'w').close()")
    code = "import builtins, os\nprint(hasattr(builtins, 'leak'), os.path.exists('leak'))"
    assert sandbox.run_script(code).stdout == "False False\n"
