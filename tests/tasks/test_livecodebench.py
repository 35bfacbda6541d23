import base64
import json
import pickle
import zlib

import pytest

from cleaner_env.errors import ConfigError, DataError
from cleaner_env.grading import CodeTests
from cleaner_env.sandbox import make_sandbox
from cleaner_env.tasks import get_task

STDIN = [{"input": "3\n", "output": "6\n", "testtype": "stdin"}, {"input": "-1\n", "output": "-2\n", "testtype": "stdin"}]
FUNCTIONAL = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]


def official(public, private, **changes):
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    record = {
        "question_title": "Twice",
        "question_content": "Double the number.",
        "platform": "elsewhere",
        "question_id": "q_1",
        "contest_date": "2025-01-02T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed,
        "metadata": "{}",
    }
    return {**record, **changes}


def load(tmp_path, record):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(record))
    return get_task("livecodebench").load(str(path)).problems[0]


def test_the_official_schema(tmp_path):
    problem = load(tmp_path, official(STDIN[:1], STDIN[1:]))
    tests = CodeTests.from_json(problem.answer)
    assert problem.id == "q_1"
    assert [test.input for test in tests.tests] == ["3\n", "-1\n"]
    assert (tests.function, tests.time_limit_s) == (None, 6.0)
    assert problem.metadata["contest_date"] == "2025-01-02T00:00:00"
    (_, user) = get_task("livecodebench").messages(problem)
    assert user["content"].startswith("Double the number.\n\nWrite a Python program")
    with make_sandbox("local") as sandbox:
        grade = get_task("livecodebench").grade(problem, "```python\nprint(2 * int(input()))\n```", sandbox)
    assert grade.verdict == "correct"


def test_private_tests_may_be_plain(tmp_path):
    for private in (json.dumps(STDIN[1:]), STDIN[1:], "[]", None):
        problem = load(tmp_path, official(STDIN[:1], [], private_test_cases=private))
        assert CodeTests.from_json(problem.answer).tests[0].output == "6\n"


def test_functional_problems(tmp_path):
    starter = "class Solution:\n    def add(self, xs: List[int], n: int) -> List[int]:\n"
    problem = load(tmp_path, official(FUNCTIONAL, [], starter_code=starter, metadata='{"func_name": "add"}'))
    assert CodeTests.from_json(problem.answer).function == "add"
    content = get_task("livecodebench").messages(problem)[1]["content"]
    assert "the Python function add" in content
    assert f"```python\n{starter.strip()}\n```" in content
    code = f"```python\n{starter}        return tuple(x + n for x in xs)\n```"
    with make_sandbox("local") as sandbox:
        assert get_task("livecodebench").grade(problem, code, sandbox).verdict == "correct"


def test_the_plain_schema(tmp_path):
    row = {"question": "Double it.", "tests": [{"input": "2", "output": "4"}], "fn_name": "twice", "time_limit_s": 1.5}
    tests = CodeTests.from_json(load(tmp_path, row).answer)
    assert (tests.function, tests.time_limit_s, len(tests.tests)) == ("twice", 1.5, 1)


def test_a_tool_format_that_answers_would_be_mistaken_for_is_refused():
    get_task("livecodebench").check_tool_format("hermes")
    with pytest.raises(ConfigError, match="'python' cannot be used with livecodebench"):
        get_task("livecodebench").check_tool_format("python")
    get_task("aime").check_tool_format("python")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (official([], []), "at least one test"),
        (official(STDIN, FUNCTIONAL), "stdin or functional for all tests"),
        (official([{**STDIN[0], "testtype": "magic"}], []), "stdin or functional for all tests"),
        (official([{"input": "1"}], []), "input, output and testtype"),
        (official([{**STDIN[0], "input": 1}], []), "input and output of a test must be text, got 1"),
        (official(STDIN, [{**STDIN[0], "output": None}]), "input and output of a test must be text, got None"),
        (official([{"testtype": "stdin", "input": "1"}], []), "tests must be"),
        (official(["x"], []), "input, output and testtype"),
        (official(FUNCTIONAL, []), "func_name"),
        (official(FUNCTIONAL, [], metadata="{"), "func_name"),
        (official(FUNCTIONAL, [], metadata='{"func_name": "f()"}'), "identifier"),
        (official(FUNCTIONAL, [], metadata='{"func_name": "class"}'), "identifier"),
        (official([{**FUNCTIONAL[0], "input": "{"}], [], metadata='{"func_name": "f"}'), "not JSON"),
        (official(STDIN, [], public_test_cases="{"), "public_test_cases is not JSON"),
        (official(STDIN, [], public_test_cases="{}"), "public_test_cases must be a list"),
        (official(STDIN, [], private_test_cases="?"), "private_test_cases is neither"),
        (official(STDIN, [], question_content=""), "the question is empty"),
        ({"question": "Double it."}, "no column for the tests"),
        ({"question": "Double it.", "tests": "x"}, "tests must be"),
        ({"question": "Double it.", "tests": [{"input": "1", "output": "1"}], "time_limit_s": "soon"}, "time_limit_s"),
        ({"question": "Double it.", "tests": [{"input": "1", "output": "1"}], "time_limit_s": -1}, "time_limit_s"),
        (
            {"question": "Double it.", "tests": [{"input": "1", "output": "1"}], "time_limit_s": 1e308},
            "number from 0.01 to 3600",
        ),
        (
            {"question": "Double it.", "tests": [{"input": "1", "output": "1"}], "memory_mb": 0.5},
            "number from 1 to 1048576",
        ),
        (
            {"question": "Double it.", "tests": [{"input": "1", "output": "1"}], "checker": "def check(i,o,e:"},
            "cannot be compiled",
        ),
    ],
)
def test_malformed_records_are_refused_with_the_line(tmp_path, record, message):
    with pytest.raises(DataError, match=f"line 1: .*{message}"):
        load(tmp_path, record)


def test_both_judges_are_reported_side_by_side(tmp_path):
    problem = load(tmp_path, official(STDIN[:1], STDIN[1:]))
    turn = "```python\nn = 0\ndef read():\n    global n\n    n = int(input())\nread()\nprint(2 * n)\n```"
    with make_sandbox("local") as sandbox:
        judgements = get_task("livecodebench").judge(problem, turn, sandbox)
    assert {mode: judgement.status for mode, judgement in judgements.items()} == {"strict": "AC", "livecodebench": "WA"}


def test_windows_of_a_local_file(tmp_path):
    path = tmp_path / "set.jsonl"
    days = ("2024-12-31", "2025-01-01", "2025-02-01")
    rows = [official(STDIN, [], question_id=f"q{n}", contest_date=f"{day}T10:00:00") for n, day in enumerate(days)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = get_task("livecodebench").load(str(path), "2025-01-01..2025-01-31")
    assert [problem.id for problem in dataset.problems] == ["q1"]
    assert [problem.id for problem in dataset.problems[0:1]] == ["q1"]
    with pytest.raises(DataError, match="has no part 'v6'; give a window of dates such as"):
        get_task("livecodebench").load(str(path), "v6")
    path.write_text(json.dumps(official(STDIN, [], contest_date="soon")))
    with pytest.raises(DataError, match="line 1: contest_date must begin with a date"):
        get_task("livecodebench").load(str(path), "2025-01-01..2025-01-31")


@pytest.mark.parametrize(
    ("outputs", "values"),
    [
        ([[3], [4]], ["3", "4"]),
        ([[[3, 4]], [[3]]], ["[3, 4]", "[3]"]),
        ([[3, 4], [3]], ["[3, 4]", "[3]"]),
        ([["3"], [""]], ['"3"', '""']),
        (["3", "[4]"], ["3", "[4]"]),
        ([3, True], ["3", "true"]),
    ],
)
def test_values_of_functions_in_the_schema_of_verl(tmp_path, outputs, values):
    """Whether they are wrapped in a list is decided for all tests of a problem."""
    truth = {"inputs": [[1, [2]], [3, [4]]], "outputs": outputs, "fn_name": "f"}
    row = {"prompt": [{"role": "user", "content": "Write f."}], "reward_model": {"ground_truth": truth}}
    tests = CodeTests.from_json(load(tmp_path, row).answer)
    assert [test.output for test in tests.tests] == values
    assert [test.input for test in tests.tests] == ["1\n[2]", "3\n[4]"]
