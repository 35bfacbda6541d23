"""Runs the reference and the wrong solutions of every built-in programming problem in the real sandbox."""

import pytest

from cleaner_env.grading import Judge
from cleaner_env.sandbox import make_sandbox
from cleaner_env.tasks import get_task
from cleaner_env.tasks.builtin.programming import programs

PROGRAMS = programs()
WRONG = [(program, mistake) for program in PROGRAMS for mistake in program.wrong]


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as opened:
        yield opened


@pytest.fixture(scope="module")
def judge(sandbox):
    with Judge(sandbox) as opened:
        yield opened


@pytest.fixture(scope="module")
def problems():
    return {problem.id: problem for problem in get_task("livecodebench").load("builtin").problems}


def grade(problem, code, sandbox):
    return get_task("livecodebench").grade(problem, f"This should do:\n```python\n{code}```\n", sandbox).verdict


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_the_reference_passes(program, problems, sandbox):
    assert grade(problems[program.id], program.reference, sandbox) == "correct"


@pytest.mark.parametrize(("program", "mistake"), WRONG, ids=[f"{program.id}-{mistake}" for program, mistake in WRONG])
def test_a_wrong_solution_fails_some_tests_and_passes_others(program, mistake, judge):
    compile(program.wrong[mistake], program.id, "exec")
    statuses = {result.status for result in judge.run(program.wrong[mistake], program.tests, stop_early=False)}
    assert "AC" in statuses
    assert statuses & {"WA", "RE", "TLE"}


def test_the_set_is_varied():
    assert len(PROGRAMS) >= 30
    assert sum(program.tests.checker != "exact" for program in PROGRAMS) >= 2
    assert {program.difficulty for program in PROGRAMS} == {"easy", "medium", "hard"}
    assert {program.tests.function is None for program in PROGRAMS} == {True, False}
    for program in PROGRAMS:
        assert len({test.input for test in program.tests.tests}) >= 10
        assert program.wrong
        assert program.tests.function is None or program.tests.function in program.starter_code


def test_hidden_things_are_not_shown(problems):
    for program in PROGRAMS:
        shown = " ".join(message["content"] for message in get_task("livecodebench").messages(problems[program.id]))
        assert program.reference.strip() not in shown
        assert program.reference.strip() not in str(problems[program.id].metadata)
        assert all(test.input not in shown for test in program.tests.tests if len(test.input) > 40)
