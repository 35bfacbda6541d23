import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import DataError, SandboxError
from cleaner_env.grading import CodeTest, CodeTests, grade_code
from cleaner_env.sandbox import make_sandbox

DOUBLE = CodeTests((CodeTest("21\n", "42\n"), CodeTest("-4\n", "-8\n")), time_limit_s=10)


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as opened:
        yield opened


def block(code):
    return f"Here it is.\n```python\n{code}\n```\n"


def program(*lines):
    return block("\n".join(lines))


def verdict(code, tests, sandbox):
    return grade_code(block(code), tests, sandbox).verdict


def outputs(expected, given_input=""):
    return CodeTests((CodeTest(given_input, expected),), time_limit_s=10)


def call(function, given_input, expected):
    return CodeTests((CodeTest(given_input, expected),), function, time_limit_s=10)


def test_a_right_program_is_correct_and_extracted(sandbox):
    grade = grade_code(block("print(int(input()) * 2)"), DOUBLE, sandbox)
    assert (grade.verdict, grade.extracted) == ("correct", "print(int(input()) * 2)\n")


@pytest.mark.parametrize(
    "code",
    [
        "print(42)",  # right for the first test only
        "print(int(input()) * 2 + 1)",
        "print(int(input()) * 2",
        "print(int(input()) * 2); raise SystemExit(1)",
        "print(int(input()) * 2); print()\nprint('debug')",
        "import os; print(int(input()) * 2, flush=True); os.kill(os.getpid(), 9)",
        "",
    ],
)
def test_wrong_programs_are_incorrect(code, sandbox):
    assert verdict(code, DOUBLE, sandbox) == "incorrect"


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nprint(int(sys.stdin.readline()) * 2)",
        "import sys\nprint(int(sys.stdin.buffer.read().split()[0]) * 2); sys.exit()",
        "import os\nprint(int(open(0).read()) * 2, flush=True); os._exit(0)",
        "total = 0\ndef add(n):\n    global total\n    total += n\nn = int(input())\nadd(n); add(n)\nprint(total)",
        "if __name__ == '__main__':\n    print(int(input()) * 2)",
        "from __future__ import annotations\nprint(int(input()) * 2)",
    ],
)
def test_programs_may_do_what_programs_do(code, sandbox):
    assert verdict(code, DOUBLE, sandbox) == "correct"


FAST_IO = """
import os, sys
from io import BytesIO, IOBase
class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode())
        self.readline = lambda: self.buffer.readline().decode()
sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\\r\\n")
print(len(input()))
"""
SAYS = "class A:\n    def __del__(self):\n        print(says)\na, says = A(), 2\n"
IDIOMS = {
    "a new wrapper of the output": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8'); print(input())",
    "a detached output": "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8'); print(input())",
    "a new wrapper of the input": "sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding='utf-8'); print(input())",
    "names and modes": "print([(s.name, s.mode, s.buffer.raw.name) for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "the first streams": "print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)",
    "the usual fast template": FAST_IO,
    "a file on the output": "w = open(1, 'w'); w.write('1')",
    "a file on the output and a function": "w = open(1, 'w')\ndef f():\n    w.write('1')\nf()",
    "a file on the output in a cycle": "class W:\n    pass\nw = W(); w.w, w.f = w, open(1, 'w'); w.f.write('1')",
    "a buffer on the output": "f = io.BufferedWriter(io.FileIO(1, 'w')); f.write(b'1')",
    "an output that is put away": "o = sys.stdout; sys.stdout = io.StringIO(); print(1); o.write('1')",
    "an output that is replaced": "sys.stdout = open(1, 'w', closefd=False); print(1); sys.__stdout__.write('2')",
    "a finalizer": SAYS,
    "a finalizer in a cycle": SAYS + "a.a = a",
    "a finalizer and an early exit": SAYS + "print(1); sys.exit()",
    "a finalizer and a closed output": SAYS + "print(1); sys.stdout.close()",
    "a finalizer after all others": SAYS
    + "import atexit; atexit.register(print, 1); threading.Thread(target=print).start()",
    "a generator's end": "def g():\n    try:\n        yield\n    finally:\n        print(1)\nx = g(); next(x)",
    "a closed output": "print(1); sys.stdout.close()",
    "no output": "sys.stdout = None; print(1)",
}
IDIOMS = {name: f"import io, sys, threading\n{code}" for name, code in IDIOMS.items()} | {"a mark": "\ufeffprint(1)"}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_programs_do_what_they_do_under_python(idiom, sandbox, tmp_path):
    path, given_input = tmp_path / "main.py", "é\n"
    path.write_text(IDIOMS[idiom], encoding="utf-8")
    python = [sys.executable, "-I", "-X", "utf8", str(path)]
    plain = subprocess.run(python, input=given_input, capture_output=True, encoding="utf-8", check=True)
    assert verdict(IDIOMS[idiom], outputs(plain.stdout, given_input), sandbox) == "correct"


def test_standard_input_is_read_line_by_line(sandbox):
    code = "import sys\nread = sys.stdin.buffer.readline\nprint(sum(int(read()) for _ in range(int(read()))))"
    assert verdict(code, outputs("35\n", "3\n10\n20\n5\n"), sandbox) == "correct"


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("0.50\n3 2.0\n", "0.5\n3 2\n", True),
        ("  1 2\t3 \n\n", "1 2 3", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1e3", "1000", True),
        ("-0", "0", True),
        ("50000000000000001", "50000000000000000", False),
        ("0.30000000000000004", "0.3", False),
        ("YES", "Yes", False),
        ("1 2\n3", "1 2 3", False),
        ("1\n\n2", "1\n2", False),
        ("1", "1 1", False),
        ("", "1", False),
        ("١٢", "12", False),
        ("1_000", "1000", False),
        ("a\u00a0b", "a b", False),
        ("a\u3000b", "a b", False),
        ("a\u00a0", "a", False),
        ("a \t\x0c b\x0b", "a b", True),
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("1e999999999", "1e999999999", True),
        ("1e999999999", "1e999999998", False),
    ],
)
def test_how_output_is_compared(written, expected, same, sandbox):
    grade = verdict(f"import sys; sys.stdout.write({written!r})", outputs(expected), sandbox)
    assert grade == ("correct" if same else "incorrect")


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("class Solution:\n    def f(self, xs: List[int]) -> Tuple[int, int]:\n        print()\n        return min(xs), 9",
         call("f", "[4, 1, 9]", "[1, 9]")),
        ("def f(a, b):\n    return a + b", call("f", "1\n2", "3")),
        ("from __future__ import annotations\ndef f(s: Nope) -> str:\n    return s * 2", call("f", '"ab"', '"abab"')),
        ("def f(s):\n    return s", call("f", '"\\u00e9\\n\\"\'\\\\"', '"é\\n\\"\'\\\\"')),
        ("def f():\n    return None", call("f", "", "null")),
        ("def f(x):\n    return {1: [x, True]}", call("f", "2.5", '{"1": [2.5, true]}')),
        ("def f():\n    return 0.1 + 0.2", call("f", "", "0.3")),
        ("def f():\n    return 2", call("f", "", "2.0")),
        ("def f(n):\n    return list(range(n))", call("f", "50000", str(list(range(50000))))),
        ("json = dumps = 5\ndef f():\n    return deque([3]).pop() + gcd(4, 6)", call("f", "", "5")),
        ("def f(n):\n    return n // 10", call("f", "1" + "0" * 6000, "1" + "0" * 5999)),
    ],
)  # fmt: skip
def test_functions_that_return_the_right_value(code, tests, sandbox):
    assert verdict(code, tests, sandbox) == "correct"


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f():\n    return 50000000000000001", call("f", "", "50000000000000000")),
        ("def f():\n    return 3.0000001", call("f", "", "3")),
        ("def f():\n    return 0.3001", call("f", "", "0.3")),
        ("def f():\n    return 1", call("f", "", "true")),
        ("def f():\n    return True", call("f", "", "1")),
        ("def f():\n    return '1'", call("f", "", "1")),
        ("def f():\n    return [1]", call("f", "", "[1, 2]")),
        ("def f():\n    return {'a': 1, 'b': 2}", call("f", "", '{"a": 1}')),
        ("def f():\n    return float('nan')", call("f", "", "1.0")),
        ("def f():\n    return 1e309", call("f", "", "1.0")),
        ("def f():\n    return {1}", call("f", "", "[1]")),
        ("def f():\n    print(1)", call("f", "", "1")),
        ("def f():\n    raise SystemExit(0)", call("f", "", "1")),
        ("def f(x):\n    return x", call("f", "", "1")),
        ("def g():\n    return 1", call("f", "", "1")),
        ("class Solution:\n    pass\ndef f():\n    return 1", call("f", "", "1")),
        ("def f(:", call("f", "", "1")),
        ("a = []\nfor _ in range(50_000):\n    a = [a]\ndef f():\n    return a", call("f", "", "[]")),
    ],
)
def test_functions_that_do_not(code, tests, sandbox):
    assert verdict(code, tests, sandbox) == "incorrect"


FORGERIES = [
    # An object that claims to equal everything, in the value and in its text.
    "class Same(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\n"
    "    __repr__ = lambda a: '424242'\ndef f(x):\n    return Same(3)",
    # JSON replaced by something that returns what it likes: it still has to know the answer.
    "import json\nclass Hex(str):\n    def encode(self, *a):\n        return self\n    def hex(self):\n        return Any\n"
    "json.dumps = lambda *a, **k: Hex('x')\ndef f(x):\n    return x",
    "import os, sys\nprint('correct', flush=True)\nos._exit(0)",
    "def f(x):\n    import os\n    os.write(1, b'42')\n    os._exit(0)",
    "import builtins\nbuiltins.repr = lambda x: \"'3432'\"\ndef f(x):\n    return 0",
    # Looks for the expected output in everything it can see.
    "import gc, sys, os\ndef f(x):\n    texts = [str(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]\n"
    "    frame = sys._getframe()\n    while frame:\n        texts.append(str(frame.f_globals)); frame = frame.f_back\n"
    "    texts += [str(sys.argv), str(os.environ), open('/proc/self/cmdline').read()]\n"
    "    wanted = ''.join(['424', '242'])\n    return int(wanted) if any(wanted in text for text in texts) else 0",
]


@pytest.mark.parametrize("code", FORGERIES)
def test_a_pass_cannot_be_forged(code, sandbox):
    assert verdict(code, call("f", "1", "424242"), sandbox) == "incorrect"
    assert verdict("def f(x):\n    return 424242 * x", call("f", "1", "424242"), sandbox) == "correct"


def test_no_state_passes_from_test_to_test(sandbox):
    code = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls)"
    tests = CodeTests((CodeTest("7", "1"), CodeTest("8", "1"), CodeTest("9", "1")), "f", time_limit_s=10)
    assert verdict(code, tests, sandbox) == "correct"


def test_limits_end_a_program(sandbox):
    tests = replace(DOUBLE, time_limit_s=0.5, memory_mb=128)
    assert verdict("while True: pass", tests, sandbox) == "incorrect"
    assert verdict("x = [0] * 10**9", tests, sandbox) == "incorrect"
    assert verdict("print('a' * 10**9)", tests, sandbox) == "incorrect"
    assert verdict("def f():\n    while True: pass", replace(call("f", "", "1"), time_limit_s=0.5), sandbox) == "incorrect"


def test_the_total_limit_ends_a_judgement(sandbox):
    slow = "import time; time.sleep(0.4); print(int(input()) * 2)"
    assert grade_code(block(slow), DOUBLE, sandbox, total_limit_s=0.6).verdict == "incorrect"
    assert grade_code(block(slow), DOUBLE, sandbox, total_limit_s=60).verdict == "correct"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            "First:\n```python\nprint(0)\n```\nBetter:\n```python\nprint(int(input()) * 2)\n```\nprints\n```\n42\n```",
            "correct",
        ),
        ("```py\nprint(int(input()) * 2)\n```", "correct"),
        ("```Python3\nprint(int(input()) * 2)\n```", "correct"),
        ("````python\nprint(int(input()) * 2)\n````", "correct"),
        ("1. In a list:\n   ```python\n   n = int(input())\n   print(n * 2)\n   ```\n", "correct"),
        ("```python\r\nprint(int(input()) * 2)\r\n```\r\n", "correct"),
        ("```python\nprint(int(input()) * 2)\n```\ncut:\n```python\nprint(", "correct"),
        ("<think>\n```python\nprint(int(input()) * 2)\n```\n</think>\n```python\nprint(1)\n```", "incorrect"),
        ("```python\nn = int(input())\nprint(n *", "incorrect"),
        ("```\nprint(int(input()) * 2)\n```", "no_answer"),
        ("<think>\n```python\nprint(int(input()) * 2)\n```\n</think>\nDone.", "no_answer"),
        ("print(int(input()) * 2)", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_which_block_is_the_answer(response, expected, sandbox):
    assert grade_code(response, DOUBLE, sandbox).verdict == expected


@given(
    st.lists(st.sampled_from(["```", "`", "\n", "python", " ", "<think>"]) | st.text(max_size=8), max_size=30).map("".join)
)
def test_random_text_is_no_program(text):
    class NoSandbox:
        def open(self):
            raise SandboxError("none here")

    verdict = grade_code(text, DOUBLE, NoSandbox()).verdict
    assert verdict in ("incorrect", "no_answer", "infrastructure_error")


def test_a_failing_sandbox_is_not_the_programs_fault(sandbox):
    closed = make_sandbox("local")
    closed.close()
    for tests in (DOUBLE, call("f", "1", "1")):
        assert grade_code(block("def f(x):\n    return x"), tests, closed).verdict == "infrastructure_error"


def test_tests_survive_json():
    tests = CodeTests((CodeTest('"é"\n', "1.50"),), "f", time_limit_s=2.5, memory_mb=64)
    assert CodeTests.from_json(tests.to_json()) == tests


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ("nonsense", "not JSON"),
        ("[]", "tests must be"),
        ({"tests": []}, "at least one test"),
        ({"tests": [{"input": "1"}]}, "tests must be"),
        ({"tests": [{"input": "1", "output": 2}]}, "must be text"),
        ({"tests": [{"input": "1", "output": "1"}], "fn_name": "f(1)"}, "identifier"),
        ({"tests": [{"input": "1", "output": "1"}], "fn_name": "class"}, "identifier"),
        ({"tests": [{"input": "1", "output": "1"}], "fn_name": "f", "checker": "any_case"}, "without a checker"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": 1e308}, "from 0.01 to 3600, got 1e"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": 10**400}, "from 0.01 to 3600, got 1000"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": 10**5000}, "from 0.01 to 3600, got an integer"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": 1e-9}, "from 0.01 to 3600"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": float("nan")}, "from 0.01 to 3600, got nan"),
        ({"tests": [{"input": "1", "output": "1"}], "time_limit_s": True}, "from 0.01 to 3600, got True"),
        ({"tests": [{"input": "1", "output": "1"}], "memory_mb": 0.5}, "from 1 to 1048576, got 0.5"),
        ({"tests": [{"input": "1", "output": "1"}], "memory_mb": 10**12}, "from 1 to 1048576"),
        ({"tests": [{"input": "{", "output": "1"}], "fn_name": "f"}, "test 1 .* not JSON"),
        ({"tests": [{"input": "1", "output": "NaN"}], "fn_name": "f"}, "test 1 .* not JSON"),
    ],
)
def test_malformed_tests_are_refused(gold, message):
    with pytest.raises(DataError, match=message):
        grade_code(block("print(1)"), gold, sandbox=None)
