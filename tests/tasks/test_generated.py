import pickle
import random

import pytest

from cleaner_env.tasks import Problem, get_task
from cleaner_env.tasks.generated import load_generated


def draw_number(generator: random.Random) -> Problem:
    number = generator.randrange(100)
    return Problem("number", f"What is {number}?", str(number))


@pytest.mark.parametrize("split", ["train", "test"])
def test_reserved_texts_are_in_neither_split(split):
    def texts(reserved):
        problems = load_generated("numbers", split, draw_number, reserved=reserved).problems
        return {problem.prompt for problem in problems[:2000]}

    every_text = texts(frozenset())
    assert len(every_text) > 1
    first = min(every_text)
    assert texts(frozenset({first})) == every_text - {first}


@pytest.mark.parametrize(("task", "numbers"), [("aime", [58_832]), ("gpqa", [825, 1077, 1266])])
def test_built_in_problems_are_not_drawn(task, numbers):
    """Under these numbers the first draw is a built-in problem."""

    def question(problem):
        return problem.prompt.partition("\n\nA) ")[0]

    built_in = {question(problem) for problem in get_task(task).load("builtin").problems}
    generated = get_task(task).load("generated").problems
    assert not built_in & {question(generated[number]) for number in numbers}


@pytest.mark.parametrize("task", ["aime", "gpqa", "livecodebench"])
def test_they_can_be_sent_to_another_process(task):
    problems = get_task(task).load("generated").problems
    assert pickle.loads(pickle.dumps(problems))[7] == problems[7]
