"""Chains of integer operations: problems for models too small to do anything else.

A problem defines one variable after another, each from the one before. The operands are single digits, which a model of a
million parameters can copy; the values run to millions, which it cannot work out in its head. So every variable takes the
tool, and the interpreter's state carries it to the next call.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final, overload

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError, DataError
from cleaner_env.grading import Grade, grade_integer
from cleaner_env.tasks.base import Dataset, Problem, Task

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["ArithmeticTask", "Step"]

SPLITS: Final = ("train", "test")
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
        split = "train" if split is None else split
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r} for arithmetic; choose one of {', '.join(SPLITS)}")
        problems = _Problems(self.steps, self.seed, split)
        return Dataset(dataset, problems, problems.fingerprint())

    def messages(self, problem: Problem) -> Conversation:
        question = f"{problem.prompt}\nCompute one variable per call, then give the last value in \\boxed{{}}."
        return ({"role": "user", "content": question},)

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox) -> Grade:
        del sandbox
        return grade_integer(turn, problem.answer)


@dataclass(frozen=True)
class _Problems(Sequence[Problem]):
    """The problems of a split, each made when it is looked up."""

    steps: int
    seed: int
    split: str

    def __len__(self) -> int:
        return PROBLEMS_PER_SPLIT

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            index = range(len(self))[index]
        except IndexError:
            raise IndexError(f"problem {index} of {len(self)}") from None
        rng = random.Random(f"{self.seed}/{self.split}/{self.steps}/{index}")
        chain = self._chain(rng)
        while (_operand_sum(chain) % TEST_DIVISOR == 0) != (self.split == "test"):
            chain = self._chain(rng)
        definitions = "\n".join(f"{step.variable} = {step.expression}" for step in chain)
        return Problem(
            id=f"arithmetic-{self.steps}-{self.seed}-{self.split}-{index}",
            prompt=f"Find {chain[-1].variable}, given:\n{definitions}",
            answer=str(chain[-1].value),
            metadata={"steps": chain},
        )

    def _chain(self, rng: random.Random) -> tuple[Step, ...]:
        chain: list[Step] = []
        for number, variable in enumerate(ascii_lowercase[: self.steps]):
            if chain:
                left, value = chain[-1].variable, chain[-1].value
                symbol, right = "+*"[number % 2], rng.randint(2, 9)
            else:
                value = rng.randint(3, 9)
                left, symbol, right = str(value), "**", rng.randint(4, 6)
            chain.append(Step(variable, left, symbol, right, _OPERATIONS[symbol](value, right)))
        return tuple(chain)

    def fingerprint(self) -> str:
        """Hashes the parameters and a sample; all the rest follows from them."""
        sample = [(problem.id, problem.prompt, problem.answer) for problem in self[:100]]
        return hashlib.sha256(repr((self, sample)).encode()).hexdigest()


def _operand_sum(chain: Sequence[Step]) -> int:
    return int(chain[0].left) + sum(step.right for step in chain)
