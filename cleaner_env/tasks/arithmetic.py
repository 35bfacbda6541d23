"""Chains of integer operations: problems for models too small to do anything else.

A problem defines one variable after another, each from the one before. The operands are single digits, which a model of a
million parameters can copy; the values run to millions, which it cannot work out in its head. So every variable takes the
tool, and the interpreter's state carries it to the next call.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError, DataError
from cleaner_env.grading import Grade, grade_integer
from cleaner_env.tasks.base import Dataset, Problem, Task
from cleaner_env.tasks.generated import on_demand

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["ArithmeticTask", "Step"]

PROBLEMS_PER_SPLIT: Final = 100_000
TEST_DIVISOR: Final = 5
"""The operands of a problem add up to a multiple of this in the test split and never do in the training split."""

_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {"+": operator.add, "*": operator.mul, "**": operator.pow}


@dataclass(frozen=True)
class Step:
    """One definition of a chain, such as ``b = a * 7``.

    Attributes:
        variable: The name that is defined.
        left: A number in the first step, the variable before in the others.
        symbol: ``**`` in the first step; ``*`` and ``+`` by turns in the others.
        right: The second operand.
        value: What the variable comes to.
    """

    variable: str
    left: str
    symbol: str
    right: int
    value: int

    @property
    def expression(self) -> str:
        """The right-hand side, in Python as in mathematics."""
        return f"{self.left} {self.symbol} {self.right}"


class ArithmeticTask(Task):
    """Chains of ``steps`` operations on integers, made as they are asked for.

    The only data set is ``"builtin"``, with the splits ``"train"`` (the default) and ``"test"``. No problem is in both;
    within a split of short chains, problems recur.

    Args:
        steps: Operations in a chain, 1 to 26.
        seed: Problem ``i`` of a split is a function of the seed, the split, the number of steps and ``i``.

    Raises:
        ConfigError: ``steps`` is out of range.

    Example:
        >>> problem = ArithmeticTask(steps=2).load("builtin").problems[0]
        >>> print(problem.prompt)
        Find b, given:
        a = 8 ** 6
        b = a * 5
        >>> problem.answer
        '1310720'
    """

    name = "arithmetic"

    def __init__(self, steps: int = 3, seed: int = 0) -> None:
        if not 1 <= steps <= len(ascii_lowercase):
            raise ConfigError(f"steps must be 1 to {len(ascii_lowercase)}, got {steps!r}")
        self.steps = steps
        self.seed = seed

    def load(self, dataset: str, split: str | None = None) -> Dataset:
        if dataset != "builtin":
            raise DataError(f"unknown data set {dataset!r} for arithmetic; its only one is 'builtin'")
        return on_demand(dataset, split, PROBLEMS_PER_SPLIT, partial(_problem, self.steps, self.seed))

    def messages(self, problem: Problem) -> Conversation:
        question = f"{problem.prompt}\nCompute one variable per call, then give the last value in \\boxed{{}}."
        return ({"role": "user", "content": question},)

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox) -> Grade:
        del sandbox
        return grade_integer(turn, problem.answer)


def _problem(steps: int, seed: int, split: str, number: int) -> Problem:
    rng = random.Random(f"{seed}/{split}/{steps}/{number}")
    chain = _chain(rng, steps)
    while (_operand_sum(chain) % TEST_DIVISOR == 0) != (split == "test"):
        chain = _chain(rng, steps)
    definitions = "\n".join(f"{step.variable} = {step.expression}" for step in chain)
    return Problem(
        id=f"arithmetic-{steps}-{seed}-{split}-{number}",
        prompt=f"Find {chain[-1].variable}, given:\n{definitions}",
        answer=str(chain[-1].value),
        metadata={"steps": chain},
    )


def _chain(rng: random.Random, steps: int) -> tuple[Step, ...]:
    chain: list[Step] = []
    for number, variable in enumerate(ascii_lowercase[:steps]):
        if chain:
            left, value = chain[-1].variable, chain[-1].value
            symbol, right = "+*"[number % 2], rng.randint(2, 9)
        else:
            value = rng.randint(3, 9)
            left, symbol, right = str(value), "**", rng.randint(4, 6)
        chain.append(Step(variable, left, symbol, right, _OPERATIONS[symbol](value, right)))
    return tuple(chain)


def _operand_sum(chain: Sequence[Step]) -> int:
    return int(chain[0].left) + sum(step.right for step in chain)
