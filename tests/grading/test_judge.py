"""The judge: limits, isolation of tests from one another and from the judge, checkers, and LiveCodeBench's own rules."""

import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cleaner_env
from cleaner_env.errors import DataError, InfrastructureError
from cleaner_env.grading import CodeTest, CodeTests, Judge, judge_code
from cleaner_env.grading.judge import _batches
from cleaner_env.sandbox import make_sandbox

SECRET = "7316092358"


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as opened:
        yield opened


@pytest.fixture(scope="module")
def judge(sandbox):
    with Judge(sandbox, workers=2) as opened:
        yield opened


@pytest.fixture
def contained(sandbox):
    """Programs that kill or search whatever they can reach run only where they can reach nothing but themselves."""
    if not {"pid", "mount"} <= set(sandbox.describe()["namespaces"]):
        pytest.skip("this kernel gives no namespaces; such programs would reach every process of this user")
    return sandbox


def numbers(count, function=None):
    return CodeTests(tuple(CodeTest(f"{n}\n", f"{2 * n}\n") for n in range(count)), function, time_limit_s=10)


def statuses(judge, code, tests, **options):
    return [result.status for result in judge.run(code, tests, **options)]


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (5, 2), (100, 2), (100, 3), (7, 16)])
def test_every_test_is_in_one_batch(count, workers):
    batches = _batches(numbers(count).tests, workers)
    assert [number for batch in batches for number in batch] == list(range(count))
    assert all(batches)


def test_many_tests_each_in_a_process_of_its_own(judge):
    code = "import os\nn = int(input())\nprint(2 * n if not os.path.exists('seen') else 'seen')\nopen('seen', 'w').close()"
    assert statuses(judge, code, numbers(40)) == ["AC"] * 40


def test_one_result_per_test_unless_stopped_early(judge):
    code = "n = int(input())\nprint(2 * n if n != 6 else 0)"
    all_of_them = statuses(judge, code, numbers(20), stop_early=False)
    assert all_of_them == ["AC"] * 6 + ["WA"] + ["AC"] * 13
    stopped = statuses(judge, code, numbers(200))
    assert stopped[6] == "WA"
    assert stopped.count("skipped") > 100


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "TLE"),
        ("import time; time.sleep(60)", "TLE"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(2)", "TLE"),
        ("x = [0] * 10**9", "MLE"),
        ("print('a' * 10**8)", "OLE"),
        ("1 / 0", "RE"),
        ("raise SystemExit(3)", "RE"),
        ("import os; os._exit(1)", "RE"),
        ("import os; os.abort()", "RE"),
        ("def f(", "RE"),
        ("print(3)", "WA"),
        ("print(2)", "AC"),
        ("import os; os.write(1, b'2'); os._exit(0)", "AC"),
        ("import atexit; atexit.register(print, 2)", "AC"),
        ("import threading; threading.Thread(target=print, args=(2,)).start()", "AC"),
        ("import sys; sys.stdout.write('2'); sys.exit()", "AC"),
        ("import sys; sys.stdin.close(); print(2)", "AC"),
    ],
)
def test_how_a_test_can_end(code, status, judge):
    limit_s = 1.0 if status == "TLE" else 10.0
    tests = CodeTests((CodeTest("1\n", "2\n"), CodeTest("1\n", "2\n")), time_limit_s=limit_s, memory_mb=256)
    assert statuses(judge, code, tests, stop_early=False) == [status] * 2
    assert statuses(judge, "print(2)", tests) == ["AC"] * 2


def test_inputs_larger_than_the_files_that_programs_may_write(judge):
    tests = CodeTests((CodeTest("x" * 20_000_000, "20000000"), CodeTest("x", "1")), time_limit_s=10)
    assert statuses(judge, "import sys; print(len(sys.stdin.read()))", tests) == ["AC"] * 2


def test_the_total_limit(judge):
    code = "import time; time.sleep(0.3); print(2 * int(input()))"
    found = statuses(judge, code, numbers(12), total_limit_s=1.0, stop_early=False)
    assert found[0] == "AC"
    assert found[-1] == "TLE"
    assert set(found) == {"AC", "TLE"}


LEAVES_SOMETHING = {
    "a file": "open('x', 'w').close()",
    "a file in the temporary folder": "import tempfile; open(tempfile.gettempdir() + '/x', 'w').close()",
    "a folder that is closed": "import os; os.makedirs('a/b'); os.chmod('a', 0)",
    "a process": "import os\nif os.fork() == 0:\n    import time; time.sleep(100)",
    "a process of its own group": "import os\nif os.fork() == 0:\n    os.setsid(); import time; time.sleep(100)",
    "a variable of the environment": "import os; os.environ['X'] = 'x'",
    "a module": "import json; json.dumps = None; import builtins; builtins.len = None",
}
LOOKS = """
import glob, os, tempfile, json, builtins
found = os.listdir('.') + os.listdir(tempfile.gettempdir()) + [k for k in os.environ if k == 'X']
found += [] if json.dumps and builtins.len else ['module']
me, mine = os.getpid(), {os.getpid()}
for path in glob.glob('/proc/[0-9]*/cmdline'):
    pid = int(path.split('/')[2])
    try:
        parent = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])
    except OSError:
        continue
    if parent == os.getppid() and pid != me:
        found.append(f'process {pid}')
print(2 * int(input()) if not found else found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("what", LEAVES_SOMETHING)
def test_nothing_is_left_for_the_next_test(what, sandbox):
    with Judge(sandbox) as judge:
        tests = CodeTests(tuple(CodeTest(f"{n}\n", f"{2 * n}\n") for n in range(3)), time_limit_s=10)
        assert statuses(judge, LOOKS + LEAVES_SOMETHING[what], tests) == ["AC"] * 3


@pytest.mark.parametrize("rules", ["", "_ruleset = -1"], ids=["rules of the kernel", "a kernel without them"])
def test_the_runner_cannot_be_stopped_for_good(rules, contained):
    code = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print(2 * int(input()))"
    with Judge(contained) as judge:
        assert statuses(judge, "print(2 * int(input()))", numbers(3)) == ["AC"] * 3
        assert judge._idle[0].session.run(rules).ok
        assert statuses(judge, code, replace(numbers(1), time_limit_s=0.5), total_limit_s=1e6)[0] in ("RE", "TLE")
        assert statuses(judge, "print(2 * int(input()))", numbers(3)) == ["AC"] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock")
def test_the_runner_cannot_be_signalled(contained):
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 6:
        pytest.skip("this kernel's Landlock does not keep signals in")
    code = """
import os
try:
    os.kill(os.getppid(), 0)
    print("reached")
except PermissionError:
    print(2 * int(input()))
"""
    with Judge(contained) as judge:
        assert statuses(judge, code, numbers(3)) == ["AC"] * 3


SEEN_BEFORE = """
import gc, sys
seen, frame = [], sys._getframe()
while frame:
    seen.append(str(frame.f_locals))
    frame = frame.f_back
seen += [str(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple)) and thing is not seen]
n = int(input())
others = [str(mark) for k in range(1, 5) if k != n for mark in (24_690 + 13 * k, 41_927 + 1_111 * k)]
print(24_690 + 13 * n, [other for other in others if any(other in text for text in seen)])
"""


def test_a_test_sees_nothing_of_those_before_it(judge):
    """Neither what they wrote nor how many bytes they read."""
    tests = tuple(CodeTest(f"{k}\n".ljust(41_927 + 1_111 * k), f"{24_690 + 13 * k} []") for k in range(1, 5))
    assert statuses(judge, SEEN_BEFORE, CodeTests(tests, time_limit_s=30)) == ["AC"] * 4


def test_limits_cannot_be_raised(contained):
    code = """
import os, resource
for pid in (0, os.getppid()):
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        print('raised')
    except (OSError, ValueError):
        pass
print(2 * int(input()))
"""
    with Judge(contained) as judge:
        assert statuses(judge, code, numbers(2)) == ["AC"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")
def test_shared_memory_is_cleared(sandbox):
    names = sandbox.describe()["namespaces"]
    if not {"mount", "ipc"} <= set(names):
        pytest.skip("this kernel gives no namespaces")
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
seen = os.listdir('/dev/shm') + open('/proc/sysvipc/shm').read().splitlines()[1:]
seen += open('/proc/sysvipc/sem').read().splitlines()[1:] + open('/proc/sysvipc/msg').read().splitlines()[1:]
open('/dev/shm/x', 'w').close()
made = [libc.shmget(77, 4096, 0o1600), libc.semget(77, 1, 0o1600), libc.msgget(77, 0o1600)]
print(2 * int(input()) if not seen and min(made) >= 0 else (seen, made))
"""
    with Judge(sandbox) as judge:
        assert statuses(judge, code, numbers(4)) == ["AC"] * 4


WRITE_EVERYWHERE = """
import os
for fd in range(64):
    try:
        os.write(fd, b'{"status": "ok", "output": "0", "seconds": 0}\\n')
    except OSError:
        pass
"""
REPLACE_FUNCTIONS = """
import gc
for thing in gc.get_objects():
    if getattr(thing, '__name__', '') in ('_run_test', '_write_all', '_shut_down', '_collect'):
        try:
            thing.__code__ = (lambda *a, **k: {}).__code__
        except Exception:
            pass
"""
WRITE_AT_THE_END = f"""
class A:
    def __del__(self):
        exec({WRITE_EVERYWHERE!r})
        os._exit(0)
a = A()
print(0)
"""
FORGERIES = {
    "an exit code": "import os; os._exit(0)",
    "a marker": "print('AC'); print('correct'); print('{\"status\": \"ok\"}')",
    "the runner's form, on every descriptor": WRITE_EVERYWHERE,
    "an object equal to all": "class A:\n    __eq__ = lambda s, o: True\n    __repr__ = lambda s: '0'\nprint(A())",
    "json and repr replaced": "import json, builtins\njson.dumps = json.loads = builtins.repr = lambda *a: '0'\nprint(0)",
    "print replaced": "import builtins\nbuiltins.str = builtins.print = lambda *a: None",
    "the runner killed": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "everyone killed": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "the runner's functions replaced": REPLACE_FUNCTIONS,
    "the runner's form, at the very end": WRITE_AT_THE_END,
    "the end replaced": "import atexit, gc, os\ngc.collect = atexit._run_exitfuncs = lambda *a: os._exit(0)\nprint(0)",
    "no streams": "import sys\nsys.stdout = sys.__stdout__ = sys.stdin = sys.__stdin__ = None",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_pass_cannot_be_forged(how, contained):
    with Judge(contained) as judge:
        tests = CodeTests(tuple(CodeTest(f"{n}", SECRET) for n in range(3)), time_limit_s=5)
        found = statuses(judge, FORGERIES[how], tests, stop_early=False)
        assert "AC" not in found
        assert statuses(judge, f"print({SECRET})", tests) == ["AC"] * 3


SEARCH = """
import gc, os, sys
wanted = ['%s', '%s']
def texts():
    yield str(sys.argv); yield str(os.environ)
    for pid in [p for p in os.listdir('/proc') if p.isdigit()]:
        for name in ('cmdline', 'environ', 'fd/0', 'fd/3', 'fd/4'):
            try: yield open(f'/proc/{pid}/{name}', 'rb').read(1 << 20).decode('latin1')
            except OSError: pass
        if pid != str(os.getpid()):
            try:
                for line in open(f'/proc/{pid}/maps'):
                    start, end = (int(x, 16) for x in line.split()[0].split('-'))
                    with open(f'/proc/{pid}/mem', 'rb') as memory:
                        memory.seek(start); yield memory.read(min(end - start, 1 << 22)).decode('latin1')
            except (OSError, ValueError, OverflowError): pass
    for fd in range(3, 64):
        try: yield os.pread(fd, 1 << 20, 0).decode('latin1')
        except OSError: pass
    frame = sys._getframe()
    while frame:
        yield str(frame.f_locals); frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (dict, list, tuple)):
            try: yield str(thing)
            except Exception: pass
    for folder, _, files in os.walk('.'):
        for file in files: yield open(os.path.join(folder, file), errors='replace').read()
me = input()
found = [half for half in wanted for text in texts() if ''.join(half.split('|')) in text]
print('found' if found else 'nothing')
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_hidden_tests_are_nowhere_to_be_seen(contained):
    """Neither the expected output nor the inputs of other tests: the text is put together here so as not to find itself."""
    code = SEARCH % ("731609|2358", "55118|40927")
    tests = CodeTests((CodeTest("first", "nothing"), CodeTest(f"5511840927 {SECRET}", "nothing"), CodeTest("x", SECRET)))
    with Judge(contained) as judge:
        first, second, third = judge.run(code, replace(tests, time_limit_s=60), stop_early=False)
    assert first.status == "AC"  # Sees nothing of the others.
    assert second.status == "WA"  # Its own input does hold both, so the search works.
    assert third.status == "WA"


PEEK = """
import os, sys
seen = []
def look(path):
    try:
        open(path, 'rb').read(1)
        seen.append(path)
    except OSError:
        pass
for path in {paths!r}:
    look(path)
for name in ('mem', 'environ', 'fd/0'):
    look(f'/proc/{host}/{{name}}')
try:
    os.kill({host}, 0)
    seen.append('signal')
except OSError:
    pass
import sqlite3, subprocess
subprocess.run([sys.executable, '-c', 'import numbers'], check=True)
open('/etc/passwd').close()
print(seen)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock")
@pytest.mark.parametrize("namespaces", [None, ()], ids=["best", "none"])
def test_files_and_processes_of_the_host_are_out_of_reach(namespaces, tmp_path):
    """Where tests lie on the disk or in the host's memory; nothing of what a program needs is taken away."""
    version = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 6:
        pytest.skip("this kernel's Landlock does not keep signals in")
    data = tmp_path / "problems.jsonl"
    data.write_text("hidden tests")
    built_in = Path(cleaner_env.__file__).parent / "tasks" / "builtin" / "programming" / "two-primes.toml"
    assert built_in.read_bytes()
    code = PEEK.format(paths=[str(data), str(built_in)], host=os.getpid())
    tests = CodeTests((CodeTest("", "[]"),) * 3, time_limit_s=30)
    with make_sandbox("local", namespaces=namespaces) as sandbox, Judge(sandbox) as judge:
        assert statuses(judge, code, tests) == ["AC"] * 3
        assert statuses(judge, code, tests) == ["AC"] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock")
def test_nothing_is_written_where_another_test_could_find_it(tmp_path):
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 2:
        pytest.skip("this kernel has no Landlock")
    code = f"""
open('x', 'w').close()
try:
    open({str(tmp_path / "x")!r}, 'w').close()
    print('written')
except OSError:
    print('refused')
"""
    with make_sandbox("local", namespaces=()) as sandbox, Judge(sandbox) as judge:
        assert statuses(judge, code, CodeTests((CodeTest("", "refused"),), time_limit_s=30)) == ["AC"]
    assert not (tmp_path / "x").exists()


def test_a_function_gets_only_its_own_input(judge):
    tests = CodeTests(tuple(CodeTest(str(n), str(n)) for n in range(5)), "f", time_limit_s=10)
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return x if len(seen) == 1 else -1"
    assert statuses(judge, code, tests) == ["AC"] * 5


def test_a_sandbox_that_fails_is_not_the_programs_fault():
    closed = make_sandbox("local")
    closed.close()
    with Judge(closed) as judge, pytest.raises(InfrastructureError):
        judge.run("print(1)", numbers(2))


CHECK_FACTORS = """
def check(input, output, expected):
    n = int(input)
    a, b = map(int, output.split())
    return a * b == n and 1 < a and 1 < b
"""


@pytest.mark.parametrize(
    ("checker", "given", "output", "expected", "status"),
    [
        ("any_line_order", "", "b\\na", "a\nb", "AC"),
        ("any_line_order", "", "b\\nb", "a\nb", "WA"),
        ("any_word_order", "", "2 1\\n3", "1 2\n3", "AC"),
        ("any_word_order", "", "2 2\\n3", "1 2\n3", "WA"),
        ("any_word_order", "", "2\u00a01\\n3", "1 2\n3", "WA"),
        ("any_case", "", "Yes", "YES", "AC"),
        ("exact", "", "Yes", "YES", "WA"),
        ("tolerance:1e-6", "", "0.3333333", "0.33333334", "AC"),
        ("tolerance:1e-6", "", "0.3334", "0.3333", "WA"),
        ("tolerance:1e-6", "", "nan", "0.3333", "WA"),
        ("tolerance:1e-6", "", "1_0", "10", "WA"),
        (CHECK_FACTORS, "91", "13 7", "7 13", "AC"),
        (CHECK_FACTORS, "91", "1 91", "7 13", "WA"),
        (CHECK_FACTORS, "91", "what", "7 13", "WA"),
        ("def check(input, output, expected):\n    return 1", "91", "7 13", "7 13", "WA"),
        ("import os\ndef check(input, output, expected):\n    os._exit(0)", "91", "7 13", "7 13", "WA"),
    ],
)
def test_checkers(checker, given, output, expected, status, judge):
    tests = CodeTests((CodeTest(given, expected),), checker=checker, time_limit_s=10)
    assert statuses(judge, f"print('{output}')", tests) == [status]
    assert CodeTests.from_json(tests.to_json()) == tests


@pytest.mark.parametrize("checker", ["fuzzy", "tolerance:", "tolerance:-1", "tolerance:nan", 3])
def test_unknown_checkers_are_refused(checker):
    with pytest.raises(DataError, match="unknown checker"):
        CodeTests((CodeTest("", ""),), checker=checker)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def check(i, o, e:", "cannot be compiled"),
        ("def check(i, o, e):\n    return True\nreturn 1", "cannot be compiled"),
        ("def check(i, o, e):\n    return '\0'", "cannot be compiled"),
        ("def check(i, o):\n    return True", "must define check"),
        ("def check(i, o, e, f):\n    return True", "must define check"),
        ("def check(i, o, e, *, f):\n    return True", "must define check"),
        ("class A:\n    def check(i, o, e):\n        return True", "must define check"),
        ("# def check(input, output, expected)", "must define check"),
        ("def check(i, *others, f=1):\n    return True", None),
        ("import re\ndef check(i, o, e, f=1, /):\n    return True", None),
    ],
)
def test_sources_that_no_output_could_pass_are_refused(source, message):
    if message is None:
        assert CodeTests((CodeTest("", ""),), checker=source).checker == source
    else:
        with pytest.raises(DataError, match=message):
            CodeTests((CodeTest("", ""),), checker=source)


_LONG_INTEGERS = "incorrect" if hasattr(sys, "set_int_max_str_digits") else "correct"


def block(code):
    return f"```python\n{code}\n```"


@pytest.mark.parametrize(
    ("code", "tests", "strict", "livecodebench"),
    [
        # Their wrapping in a function loses the program's globals.
        ("t = 0\ndef f():\n    global t\n    t += 1\nf()\nprint(t)", CodeTests((CodeTest("", "1"),)),
         "correct", "incorrect"),
        # Their stand-in for standard input never gets past the first line.
        ("import sys\nr = sys.stdin.buffer.readline\nr()\nprint(int(r()))", CodeTests((CodeTest("1\n2\n", "2"),)),
         "correct", "incorrect"),
        ("print('x 2.0')", CodeTests((CodeTest("", "x 2"),)), "correct", "incorrect"),
        ("print(10**5000)", CodeTests((CodeTest("", "1" + "0" * 5000),)), _LONG_INTEGERS, "correct"),
        (
            "class Solution:\n    def f(self, n):\n        return 10**5000",
            CodeTests((CodeTest("1", "1" + "0" * 5000),), "f"),
            "correct",
            "correct",
        ),
        ("print('sNaN 2')", CodeTests((CodeTest("", "3 2"),)), "incorrect", "incorrect"),
        ("print('3  2.0')", CodeTests((CodeTest("", "3 2"),)), "correct", "correct"),
        ("print(2 * int(input()))", CodeTests((CodeTest("4\n", "8\n"),)), "correct", "correct"),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", CodeTests((CodeTest("4 5\n", "9\n"),)),
         "correct", "correct"),
        ("if __name__ == '__main__':\n    print(8)", CodeTests((CodeTest("", "8"),)), "correct", "correct"),
        ("print(floor(2.5))", CodeTests((CodeTest("", "2"),)), "incorrect", "correct"),
        ("print(2)\nexit(1)", CodeTests((CodeTest("", "2"),)), "incorrect", "correct"),
        ("class Solution:\n    def f(self, n: int) -> bool:\n        return 1", CodeTests((CodeTest("1", "true"),), "f"),
         "incorrect", "correct"),
        ("class Solution:\n    def f(self, n):\n        return [(1, 2)]", CodeTests((CodeTest("1", "[[1, 2]]"),), "f"),
         "correct", "incorrect"),
        ("class Solution:\n    def f(self, n):\n        return (1, 2)", CodeTests((CodeTest("1", "[1, 2]"),), "f"),
         "correct", "correct"),
        ("class Solution:\n    def f(self, n):\n        return 0.1 + 0.2", CodeTests((CodeTest("1", "0.3"),), "f"),
         "correct", "incorrect"),
        ("class E(int):\n    __eq__ = lambda s, o: True\nclass Solution:\n    def f(self, n):\n        return E(4)",
         CodeTests((CodeTest("1", "5"),), "f"), "incorrect", "incorrect"),
    ],
)  # fmt: skip
def test_the_rules_of_livecodebench_beside_the_strict_ones(code, tests, strict, livecodebench, sandbox):
    tests = replace(tests, time_limit_s=10)
    assert judge_code(block(code), tests, sandbox).grade.verdict == strict
    assert judge_code(block(code), tests, sandbox, mode="livecodebench").grade.verdict == livecodebench


def test_which_block_livecodebench_takes(sandbox):
    tests = CodeTests((CodeTest("", "1"),), time_limit_s=10)
    response = "```python\nprint(1)\n```\nprints\n```\n1\n```"
    assert judge_code(response, tests, sandbox).grade.verdict == "correct"
    assert judge_code(response, tests, sandbox, mode="livecodebench").grade.extracted == "1"
    assert judge_code("print(1)", tests, sandbox, mode="livecodebench").status == "NO_CODE"


def test_a_judgement_says_how_each_test_went(judge, sandbox):
    code = block("n = int(input())\nprint(2 * n if n != 1 else 0)")
    judgement = judge_code(code, numbers(4), sandbox, stop_early=False, judge=judge)
    assert (judgement.status, judgement.passed, judgement.grade.verdict) == ("WA", 3, "incorrect")
    assert judge_code("nothing", numbers(4), sandbox).status == "NO_CODE"
