import json

import pytest

from cleaner_env.tasks import Problem, get_task


@pytest.fixture
def task():
    return get_task("aime")


def test_the_form_of_the_answer_is_asked_for_once(task):
    plain = task.messages(Problem("a", "How many?", "3"))
    assert plain[1]["content"] == "How many?\n\nPut your final answer, a single integer, in \\boxed{}."
    asked = task.messages(Problem("a", "How many? Answer within \\boxed{}.", "3"))
    assert asked[1]["content"] == "How many? Answer within \\boxed{}."


def test_answers_are_graded_as_integers(task):
    problem = task.load("builtin").problems[0]
    assert task.grade(problem, f"\\boxed{{{int(problem.answer):05}}}").verdict == "correct"
    assert task.grade(problem, f"\\boxed{{{int(problem.answer) + 1}}}").verdict == "incorrect"
    assert task.grade(problem, problem.answer).verdict == "no_answer"


@pytest.mark.parametrize("answer", [33, "33", "033", 33.0, "33.0", "$33$", "33^\\circ"])
def test_answers_in_files_may_be_dressed(task, tmp_path, answer):
    path = tmp_path / "exam.jsonl"
    path.write_text(json.dumps({"problem": "How many?", "answer": answer}))
    assert task.load(str(path)).problems[0].answer == "33"
