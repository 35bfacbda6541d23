"""Programs without end: steps on a list of integers, one after the other, as many as the level says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from cleaner_env.grading.code_tests import CodeTest, CodeTests
from cleaner_env.tasks.builtin.drawing import between

__all__ = ["Pipeline", "draw_pipeline"]

Numbers: TypeAlias = "list[int]"

LEVELS: Final = 4
_TESTS: Final = 12
_DIFFICULTIES: Final = {1: "easy", 2: "medium", 3: "hard", 4: "hard"}


@dataclass(frozen=True)
class Step:
    """One step: what it does in words, in Python on a list called ``numbers``, and here."""

    words: str
    code: str
    apply: Callable[[Numbers], Numbers]


@dataclass(frozen=True)
class Pipeline:
    """A drawn problem.

    Attributes:
        prompt: What is asked.
        tests: Drawn inputs and their outputs.
        level: How many steps there are.
        difficulty: ``"easy"``, ``"medium"`` or ``"hard"``.
        reference: A right program.
        shortcut: The program that leaves the last step out.
    """

    prompt: str
    tests: CodeTests
    level: int
    difficulty: str
    reference: str
    shortcut: str


def draw_pipeline(generator: random.Random) -> Pipeline:
    """Draws a problem in which every step matters to some test."""
    while True:
        level = between(generator, 1, LEVELS)
        steps = [generator.choice(_STEPS)(generator) for _ in range(level)]
        words, code, finish = generator.choice(_ENDS)
        inputs = [
            _draw_input(generator, size) for size in (0, 1, 2, 3, *(between(generator, 4, 30) for _ in range(_TESTS - 4)))
        ]
        outputs = [finish(_run(steps, numbers)) for numbers in inputs]
        all_matter = all(
            any(
                finish(_run(steps[:k] + steps[k + 1 :], numbers)) != output
                for numbers, output in zip(inputs, outputs, strict=True)
            )
            for k in range(level)
        )
        some_go_without = any(
            finish(_run(steps[:-1], numbers)) == output for numbers, output in zip(inputs, outputs, strict=True)
        )
        if all_matter and some_go_without and len(set(map(tuple, inputs))) == _TESTS:
            break
    numbered = "\n".join(f"{number}. {step.words}" for number, step in enumerate(steps, 1))
    prompt = (
        "Read integers, separated by spaces, from a line that may be empty. Then do this with the list of them:\n"
        f"{numbered}\n\nOutput: {words}"
    )
    pairs = (
        CodeTest(" ".join(map(str, numbers)) + "\n", output + "\n") for numbers, output in zip(inputs, outputs, strict=True)
    )
    return Pipeline(
        prompt, CodeTests(tuple(pairs)), level, _DIFFICULTIES[level], _program(steps, code), _program(steps[:-1], code)
    )


def _program(steps: list[Step], end: str) -> str:
    lines = ["numbers = list(map(int, input().split()))", *(f"numbers = {step.code}" for step in steps), end]
    return "\n".join(lines) + "\n"


def _run(steps: list[Step], numbers: Numbers) -> Numbers:
    for step in steps:
        numbers = step.apply(numbers)
    return numbers


def _draw_input(generator: random.Random, size: int) -> Numbers:
    return [between(generator, -20, 20) for _ in range(size)]


def _add(generator: random.Random) -> Step:
    k = between(generator, 2, 9)
    return Step(f"Add {k} to each number.", f"[x + {k} for x in numbers]", lambda numbers: [x + k for x in numbers])


def _multiply(generator: random.Random) -> Step:
    k = between(generator, 2, 9)
    return Step(f"Multiply each number by {k}.", f"[{k} * x for x in numbers]", lambda numbers: [k * x for x in numbers])


def _square(generator: random.Random) -> Step:
    del generator
    return Step("Replace each number by its square.", "[x * x for x in numbers]", lambda numbers: [x * x for x in numbers])


def _keep_even(generator: random.Random) -> Step:
    del generator
    return Step(
        "Keep only the even numbers.",
        "[x for x in numbers if x % 2 == 0]",
        lambda numbers: [x for x in numbers if x % 2 == 0],
    )


def _keep_greater(generator: random.Random) -> Step:
    k = between(generator, -9, 9)
    return Step(
        f"Keep only the numbers greater than {k}.",
        f"[x for x in numbers if x > {k}]",
        lambda numbers: [x for x in numbers if x > k],
    )


def _keep_not_divisible(generator: random.Random) -> Step:
    k = between(generator, 3, 7)
    return Step(
        f"Remove all multiples of {k}.", f"[x for x in numbers if x % {k}]", lambda numbers: [x for x in numbers if x % k]
    )


def _reverse(generator: random.Random) -> Step:
    del generator
    return Step("Reverse the order.", "numbers[::-1]", lambda numbers: numbers[::-1])


def _sort(generator: random.Random) -> Step:
    del generator
    return Step("Sort in ascending order.", "sorted(numbers)", sorted)


def _sort_by_size(generator: random.Random) -> Step:
    del generator
    return Step(
        "Sort by absolute value, smallest first; of two that are equal in it, the negative number comes first.",
        "sorted(numbers, key=lambda x: (abs(x), x))",
        lambda numbers: sorted(numbers, key=lambda x: (abs(x), x)),
    )


def _distinct(generator: random.Random) -> Step:
    del generator
    return Step(
        "Of equal numbers, keep only the first.",
        "list(dict.fromkeys(numbers))",
        lambda numbers: list(dict.fromkeys(numbers)),
    )


def _drop(generator: random.Random) -> Step:
    k = between(generator, 1, 3)
    return Step(f"Remove the first {k} (all, if there are fewer).", f"numbers[{k}:]", lambda numbers: numbers[k:])


def _every_second(generator: random.Random) -> Step:
    del generator
    return Step("Keep the first, the third, the fifth and so on.", "numbers[::2]", lambda numbers: numbers[::2])


def _running_sums(generator: random.Random) -> Step:
    del generator
    return Step(
        "Replace each number by the sum of it and all before it.",
        "[sum(numbers[: k + 1]) for k in range(len(numbers))]",
        lambda numbers: [sum(numbers[: k + 1]) for k in range(len(numbers))],
    )


def _differences(generator: random.Random) -> Step:
    del generator
    return Step(
        "Replace the list by the differences of neighbours, each number minus the one before it (one fewer than before; an "
        "empty list stays empty).",
        "[b - a for a, b in zip(numbers, numbers[1:])]",
        lambda numbers: [b - a for a, b in pairwise(numbers)],
    )


_STEPS: Final = (
    _add,
    _multiply,
    _square,
    _keep_even,
    _keep_greater,
    _keep_not_divisible,
    _reverse,
    _sort,
    _sort_by_size,
    _distinct,
    _drop,
    _every_second,
    _running_sums,
    _differences,
)
_ENDS: Final[tuple[tuple[str, str, Callable[[Numbers], str]], ...]] = (
    ("the list, separated by spaces; an empty line if nothing is left.", "print(*numbers)",
     lambda xs: " ".join(map(str, xs))),
    ("the sum of the list.", "print(sum(numbers))", lambda xs: str(sum(xs))),
    ("how many numbers are left, and the sum of them, separated by a space.", "print(len(numbers), sum(numbers))",
     lambda xs: f"{len(xs)} {sum(xs)}"),
    ('the greatest number of the list, or "none" if nothing is left.', 'print(max(numbers, default="none"))',
     lambda xs: str(max(xs)) if xs else "none"),
)  # fmt: skip
