r"""AIME: competition mathematics whose answers are integers from 0 to 999."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cleaner_env.conversation import Conversation
from cleaner_env.grading.integer import grade_integer, parse_integer
from cleaner_env.grading.verdict import Grade
from cleaner_env.tasks.base import Dataset, Problem, Task
from cleaner_env.tasks.catalog import HUB_DATASETS, hub_datasets
from cleaner_env.tasks.files import Row
from cleaner_env.tasks.generated import GENERATED, load_generated
from cleaner_env.tasks.loading import is_path, load_file, make_dataset, refuse_split, unknown_dataset

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["AIMETask"]

_SYSTEM = "You solve competition mathematics. Reason step by step."
_GENERATED = (GENERATED, *(f"{GENERATED}_level{level}" for level in range(1, 6)))
_INSTRUCTION = "Put your final answer, a single integer, in \\boxed{}."


class AIMETask(Task):
    r"""Problems with one integer as their answer, declared in ``\boxed{}``.

    The data set ``builtin`` was written for this project. ``generated`` (splits ``train`` and ``test``) never runs out, and
    has none of the built-in problems; ``generated_level1``, one step of arithmetic, to ``generated_level5``, as hard as
    ``builtin``, are its parts. The years ``aime2024``, ``aime2025`` and ``aime2026`` and the training pools
    ``dapo_math_17k`` and ``open_agentrl_30k`` are on the hub. A file has columns such as ``problem`` and ``answer``, or
    verl's schema; any integer is accepted as an answer.

    Example:
        >>> task = AIMETask()
        >>> problem = task.load("builtin").problems[0]
        >>> task.grade(problem, f"\\boxed{{{problem.answer}}}", sandbox=None).verdict
        'correct'
    """

    name = "aime"

    def load(self, dataset: str = "builtin", split: str | None = None) -> Dataset:
        if dataset == "builtin":
            from cleaner_env.tasks.builtin.aime import problems

            refuse_split(dataset, split)
            return make_dataset(dataset, problems())
        if dataset in _GENERATED:
            from cleaner_env.tasks.builtin.aime import LEVELS, draw, problems

            level = dataset.removeprefix(f"{GENERATED}_level")
            families = LEVELS[int(level)] if level != dataset else [f for level in LEVELS for f in LEVELS[level]]
            reserved = frozenset(problem.prompt for problem in problems())
            return load_generated(dataset, split, partial(draw, families), reserved=reserved)
        if dataset in hub_datasets(self.name):
            from cleaner_env.tasks.hub import load_hub_dataset

            return load_hub_dataset(HUB_DATASETS[dataset], _problem, split)
        if is_path(dataset):
            refuse_split(dataset, split)
            return load_file(dataset, _problem)
        raise unknown_dataset(self.name, dataset, ["builtin", *_GENERATED, *hub_datasets(self.name)])

    def messages(self, problem: Problem) -> Conversation:
        has_instruction = "\\boxed" in problem.prompt
        content = problem.prompt if has_instruction else f"{problem.prompt}\n\n{_INSTRUCTION}"
        return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": content}

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox | None = None) -> Grade:
        del sandbox
        return grade_integer(turn, problem.answer)


def _problem(row: Row, identifier: str) -> Problem | str:
    if row.repeats and row.has("tests"):
        return "the reference is tests of a program"
    prompt = row.text("the problem", "problem", "question", "prompt")
    value = row.get("the answer", "answer", "expected_answer", "final_answer", "solution")
    text = str(value) if type(value) is int else str(int(value)) if _is_exact(value) else value
    answer = parse_integer(text) if isinstance(text, str) else None
    if answer is None and row.repeats:
        return "the answer is no integer"
    if answer is None:
        got = f"{str(value)[:80]!r} of type {type(value).__name__}"
        raise row.error(f"the answer must be an integer, got {got}{_hint(value)}")
    return Problem(identifier, prompt, str(answer))


def _hint(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return "; from 2**53 on a float is not exact, so write the integer out"
    return "; no more than 300 characters are read" if len(str(value)) > 300 else ""


def _is_exact(value: object) -> bool:
    """Whether a value is a whole number that no other one was rounded to."""
    return isinstance(value, float) and value.is_integer() and abs(value) < 2**53
