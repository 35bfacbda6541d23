from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError, DataError
from cleaner_env.tasks.arithmetic import ArithmeticTask

indices = st.integers(0, 99_999)
splits = st.sampled_from(["train", "test"])


@given(indices, splits, st.integers(1, 26), st.integers(0, 5))
def test_the_answer_is_what_python_computes_from_the_prompt(index: int, split: str, steps: int, seed: int) -> None:
    problem = ArithmeticTask(steps, seed).load("builtin", split).problems[index]
    question, *definitions = problem.prompt.splitlines()
    names: dict[str, object] = {}
    exec("\n".join(definitions), names)
    assert len(definitions) == steps
    question = question.removeprefix("Find ").removesuffix(", given:")
    assert str(names[question]) == problem.answer


@given(indices, splits)
def test_operands_are_easy_to_copy_and_values_are_not_easy_to_guess(index: int, split: str) -> None:
    chain = ArithmeticTask().load("builtin", split).problems[index].metadata["steps"]
    assert [step.variable for step in chain] == ["a", "b", "c"]
    assert [step.left for step in chain[1:]] == ["a", "b"]
    assert all(len(str(operand)) == 1 for step in chain for operand in (step.left, step.right))
    assert all(step.value > 50 for step in chain)


def test_a_problem_is_the_same_in_every_process() -> None:
    code = "from cleaner_env.tasks.arithmetic import ArithmeticTask as T; print(T().load('builtin').problems[77].prompt)"
    prompts = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": str(seed)}
        ).stdout.strip()
        for seed in (1, 2)
    }
    assert prompts == {ArithmeticTask().load("builtin").problems[77].prompt}


def test_problems_differ_and_no_training_problem_is_tested() -> None:
    train, test = (ArithmeticTask().load("builtin", split) for split in ("train", "test"))
    seen = {problem.prompt for problem in train.problems[:5000]}
    assert len(seen) > 900
    assert seen.isdisjoint(problem.prompt for problem in test.problems[:5000])
    assert train.fingerprint != test.fingerprint


def test_the_sequence_behaves_like_one() -> None:
    problems = ArithmeticTask().load("builtin").problems
    assert len(problems) == 100_000
    assert problems[-1] == problems[99_999]
    assert list(problems[3:9:2]) == [problems[3], problems[5], problems[7]]
    with pytest.raises(IndexError):
        problems[100_000]


def test_the_prompt_asks_for_what_the_grader_takes() -> None:
    task = ArithmeticTask()
    problem = task.load("builtin").problems[5]
    (message,) = task.messages(problem)
    assert problem.prompt in message["content"]
    assert "\\boxed{}" in message["content"]
    assert task.grade(problem, f"So \\boxed{{{problem.answer}}}.", None).correct  # type: ignore[arg-type]
    assert task.grade(problem, f"\\boxed{{{int(problem.answer) + 1}}}", None).verdict == "incorrect"  # type: ignore[arg-type]
    assert task.grade(problem, "No idea.", None).verdict == "no_answer"  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, 27, -1])
def test_bad_steps_are_named(steps: int) -> None:
    with pytest.raises(ConfigError, match=rf"steps must be 1 to 26, got {steps}"):
        ArithmeticTask(steps)


def test_unknown_data_is_named() -> None:
    with pytest.raises(DataError, match="unknown data set 'gsm8k'"):
        ArithmeticTask().load("gsm8k")
    with pytest.raises(DataError, match=r"no split 'dev'.*train, test"):
        ArithmeticTask().load("builtin", "dev")
