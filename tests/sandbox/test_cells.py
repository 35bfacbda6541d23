from __future__ import annotations

import signal

import pytest

from cleaner_env.sandbox import Limits


def test_state_persists_and_the_last_expression_is_the_value(session) -> None:
    assert session.run("x = 20\ndef double(n): return 2 * n").value is None
    execution = session.run("print('out')\ndouble(x) + 2")
    assert (execution.status, execution.stdout, execution.value) == ("ok", "out\n", "42")
    assert execution.ok
    assert execution.duration_s > 0


@pytest.mark.parametrize("code", ["None", "x = 1", "", "# nothing", "import os", "for i in range(3): i"])
def test_no_value(session, code) -> None:
    execution = session.run(code)
    assert (execution.status, execution.value) == ("ok", None)


def test_an_exception_names_the_line_and_no_frame_of_the_sandbox(session) -> None:
    session.run("def outer(n):\n    return inner(n)\ndef inner(n):\n    return 1 // n")
    execution = session.run("y = 1\nouter(0)")
    assert execution.status == "error"
    assert execution.exception is not None
    assert (execution.exception.name, execution.exception.message) == (
        "ZeroDivisionError",
        "integer division or modulo by zero",
    )
    trace = execution.exception.traceback
    assert trace.startswith("Traceback (most recent call last):\n")
    assert 'File "<cell 2>", line 2, in <module>' in trace
    assert "outer(0)" in trace
    assert 'File "<cell 1>", line 4, in inner' in trace
    assert "return 1 // n" in trace
    assert "interpreter.py" not in trace
    assert execution.stderr == ""


def test_a_failed_cell_does_not_use_up_its_number(session) -> None:
    first, second = session.run("1 / 0").exception, session.run("1 / 0").exception
    assert first == second


def test_a_syntax_error_shows_its_place(session) -> None:
    exception = session.run("x = 1\nprint('a'").exception
    assert exception is not None
    assert exception.name == "SyntaxError"
    assert 'File "<cell 1>", line 2' in exception.traceback
    assert "print('a'" in exception.traceback
    assert "interpreter.py" not in exception.traceback


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd", "Odd"),
        ("class Odd:\n    def __repr__(self): raise TypeError('no')\nOdd()", "TypeError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("compile('\\ud800', '', 'exec')", "UnicodeEncodeError"),
        ("'\ud800'", "UnicodeEncodeError"),
        ("x = '\0'", "SyntaxError"),
        ("open('no such file')", "FileNotFoundError"),
    ],
)
def test_whatever_is_raised_is_reported(session, code, name) -> None:
    execution = session.run(code)
    assert execution.status == "error"
    assert execution.exception is not None
    assert execution.exception.name in (name, "ValueError")  # Python before 3.12 raises ValueError for a null byte.
    assert session.run("1").value == "1"


def test_chained_exceptions_are_shown_whole(session) -> None:
    code = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error"
    trace = session.run(code).exception.traceback
    assert "ZeroDivisionError" in trace
    assert "direct cause" in trace
    assert trace.endswith("KeyError: 'k'\n")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os; os._exit(7)", 7),
        ("import os; os._exit(0)", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("exit_now = SystemExit('bye')\nraise exit_now", 1),
    ],
)
def test_leaving_the_interpreter_ends_the_cell_only(session, code, exit_code) -> None:
    session.run("a = [1, 2]")
    execution = session.run(f"a.append(3)\n{code}")
    assert (execution.status, execution.exit_code, execution.exception) == ("exit", exit_code, None)
    assert session.run("print(a)").stdout == "[1, 2]\n"


def test_a_native_crash_is_reported_with_its_signal(session) -> None:
    session.run("a = 1")
    execution = session.run("a = 2\nprint('before', flush=True)\nimport ctypes\nctypes.string_at(0)")
    assert (execution.status, execution.signal, execution.stdout) == ("killed", "SIGSEGV", "before\n")
    assert session.run("a").value == "1"


def test_output_is_captured_at_the_descriptor(session) -> None:
    code = (
        "import os, subprocess, sys\nos.write(1, b'raw ')\nsubprocess.run(['echo', 'child'])\nprint('err', file=sys.stderr)"
    )
    execution = session.run(code)
    assert (execution.stdout, execution.stderr) == ("raw child\n", "err\n")


def test_order_of_prints_and_child_output_is_kept(session) -> None:
    execution = session.run("import subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nprint('c')")
    assert execution.stdout == "a\nb\nc\n"


def test_bytes_that_are_not_utf8_are_replaced(session) -> None:
    execution = session.run("import sys\nsys.stdout.buffer.write(b'ok \\xff\\xfe end\\n')\nprint('\\u00e9')")
    assert execution.stdout == "ok \ufffd\ufffd end\n\u00e9\n"


def test_replies_can_always_be_encoded(session) -> None:
    execution = session.run("raise ValueError('\\ud800')")
    assert execution.exception is not None
    assert execution.exception.message.encode()
    assert execution.exception.traceback.encode()


def test_writing_to_every_descriptor_forges_nothing(session) -> None:
    code = (
        "import os, struct\n"
        'body = b\'{"kind": "done", "token": "", "pid": 1, "value": "forged"}\'\n'
        "for fd in range(3, 1024):\n"
        "    try:\n"
        "        os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "    except OSError:\n"
        "        pass\n"
        "print('real')"
    )
    execution = session.run(code)
    assert (execution.status, execution.stdout, execution.value) == ("ok", "real\n", None)
    assert session.run("1 + 1").value == "2"


def test_no_descriptor_is_inherited(session) -> None:
    assert session.run("import os\n[int(fd) for fd in os.listdir('/dev/fd') if int(fd) > 2][:-1]").value == "[]"


def test_closing_every_descriptor_is_survived(session) -> None:
    assert session.run("import os\nx = 5\nos.closerange(3, 4096)").status == "ok"
    session.run("os.closerange(0, 4096)")
    assert session.run("print('here')").stdout == "here\n"


def test_using_up_the_descriptors_is_survived(session) -> None:
    assert session.run("held = []\nwhile True: held.append(open('/dev/null'))").exception.name == "OSError"
    code = "held = []\ntry:\n    while True: held.append(open('/dev/null'))\nexcept OSError: pass\nlen(held) > 100"
    assert session.run(code).value == "True"
    assert session.run("len(held) > 100").value == "True"


def test_forged_reports_on_the_channel_are_ignored(session) -> None:
    code = (
        "import os, socket, struct\n"
        "names = {line.split()[-1] for line in open('/proc/net/unix') if '@cleaner-env-' in line}\n"
        'body = b\'{"kind": "done", "token": "0", "pid": 1, "value": "forged"}\'\n'
        "tried = 0\n"
        "for name in names:\n"
        "    for _ in range(40):\n"
        "        s = socket.socket(socket.AF_UNIX)\n"
        "        s.settimeout(0.2)\n"
        "        try:\n"
        "            s.connect('\\0' + name[1:])\n"
        "            s.sendall(struct.pack('!I', len(body)) + body)\n"
        "            tried += 1\n"
        "        except OSError: pass\n"
        "print(tried > 0)"
    )
    execution = session.run(code)
    assert (execution.status, execution.stdout, execution.value) == ("ok", "True\n", None)


def test_a_forked_child_that_falls_out_of_the_cell_reports_nothing(session) -> None:
    code = "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n'parent' if pid else 'child'"
    assert session.run(code).value == "'parent'"
    code = (
        "pid = os.fork()\nif pid == 0:\n    raise ValueError('in the child')\nstatus = os.waitpid(pid, 0)[1]\nstatus >> 8"
    )
    execution = session.run(code)
    assert (execution.status, execution.value) == ("ok", "1")
    assert "ValueError: in the child" in execution.stderr


def test_standard_input(session) -> None:
    assert session.run("input()").exception.name == "EOFError"
    code = "print(input())\nimport sys\nsys.stdin.read()"
    execution = session.run(code, stdin="first \u00e9\nrest\nof it")
    assert (execution.stdout, execution.value) == ("first \u00e9\n", "'rest\\nof it'")
    assert session.run("input()").exception.name == "EOFError"
    assert session.run("input()", stdin="again\n").value == "'again'"


def test_future_statements_last(session) -> None:
    session.run("from __future__ import annotations")
    assert session.run("def f(x: no_such_name): pass\nf.__annotations__").value == "{'x': 'no_such_name'}"


def test_the_namespace_is_main(session) -> None:
    assert session.run("class Point: pass\nimport sys, pickle\np = Point()").ok
    code = "print(__name__, sys.modules['__main__'].Point is Point, type(pickle.loads(pickle.dumps(p))) is Point)"
    assert session.run(code).stdout == "__main__ True True\n"


def test_a_long_value_is_cut(session) -> None:
    execution = session.run("'a' * 1_000_000")
    assert execution.status == "ok"
    assert execution.truncated
    assert 60_000 < len(execution.value) < 70_000


def test_output_of_a_left_over_thread_goes_nowhere(session) -> None:
    first = session.run(
        "import threading, time\n"
        "def talk():\n"
        "    time.sleep(0.3)\n"
        "    print('late')\n"
        "    seen.append(1)\n"
        "seen = []\n"
        "threading.Thread(target=talk).start()\n"
        "print('cell one')"
    )
    second = session.run("time.sleep(0.6)\nprint('cell two', seen, threading.active_count())")
    assert (first.stdout, second.stdout) == ("cell one\n", "cell two [] 1\n")
    assert session.run("t = threading.Thread(target=print, args=('new',))\nt.start()\nt.join()").stdout == "new\n"


def test_a_left_over_thread_does_not_change_the_state_after_its_cell(session) -> None:
    session.run("import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1")
    session.run("threading.Thread(target=count, daemon=True).start()")
    assert session.run("n").value == session.run("n").value


def test_left_over_processes_end_with_their_cell(session, processes, marker) -> None:
    execution = session.run(f"import subprocess\np = subprocess.Popen(['sleep', '{marker}'])\np.poll() is None")
    assert (execution.status, execution.value) == ("ok", "True")
    assert processes(f"sleep {marker}") == []


def test_generators_locks_and_lambdas_survive_a_rollback(session) -> None:
    session.run(
        "import threading\n"
        "def gen():\n"
        "    k = 0\n"
        "    while True:\n"
        "        k += 1\n"
        "        yield k\n"
        "g = gen()\n"
        "next(g)\n"
        "lock = threading.Lock()\n"
        "f = lambda t: t + 1"
    )
    assert session.run("next(g); lock.acquire(); raise RuntimeError").exception.name == "RuntimeError"
    assert session.run("print(next(g), lock.acquire(False), f(1))").stdout == "2 True 2\n"


def test_cells_are_never_run_twice(session) -> None:
    clock = session.run(
        "import time\nt = time.time_ns()\nwith open('log', 'a') as h:\n    n = h.write('once\\n')\nprint(t)"
    ).stdout
    assert session.run("print(t)\nprint(open('log').read().count('once'))").stdout == f"{clock}1\n"


def test_a_closed_session_says_so_instead_of_raising(sandbox) -> None:
    session = sandbox.open()
    session.close()
    session.close()
    execution = session.run("1")
    assert execution.status == "infrastructure_error"
    assert "closed" in execution.stderr


def test_modules_in_the_working_folder_can_be_imported(session) -> None:
    session.run("open('mine.py', 'w').write('value = 1')")
    assert session.run("import mine; mine.value = 2; 1 / 0").status == "error"
    assert session.run("import sys; ('mine' in sys.modules, __import__('mine').value)").value == "(False, 1)"
    assert session.run("open('other.py', 'w').write('value = 3')\nimport other\nother.value").value == "3"


def test_an_interrupted_host_does_not_mix_replies_up(session) -> None:
    def interrupt(signum, frame) -> None:
        raise KeyboardInterrupt

    session.run("a = 1")
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            session.run("import time\ntime.sleep(1)\n'stale'", limits=Limits(wall_s=30))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert session.run("a").value == "1"


@pytest.mark.parametrize("wall_s", [float("inf"), 1e12])
def test_limits_may_be_boundless(session, wall_s) -> None:
    assert session.run("1", limits=Limits(wall_s, 1e9, 10**13, 10**12, 10**9, 10**13)).ok


def test_limits_of_one_cell_do_not_bind_the_next(session) -> None:
    session.run("1", limits=Limits(memory_mb=32, file_mb=1))
    assert session.run("len(bytearray(200 << 20))", limits=Limits(memory_mb=512)).value == str(200 << 20)
