"""Problems without end: each is drawn when it is looked up, from its number alone.

A problem belongs to the test split when the hash of its text says so, whatever number it was drawn under, so no problem is
in both splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, overload

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset, Problem
from cleaner_env.tasks.loading import fingerprint

__all__ = ["GENERATED", "GeneratedProblems", "load_generated"]

GENERATED: Final = "generated"
SPLITS: Final = ("train", "test")
PROBLEMS_PER_SPLIT: Final = 1_000_000
TEST_DIVISOR: Final = 8
_SAMPLE: Final = 100
_MAX_DRAWS: Final = 10_000

Drawn = TypeVar("Drawn")


def load_generated(
    dataset: str,
    split: str | None,
    draw: Callable[[random.Random], Drawn],
    make_problem: Callable[[str, Drawn], Problem] | None = None,
) -> Dataset:
    """Loads a data set of generated problems.

    Args:
        dataset: Its name, on which the problems depend.
        split: ``"train"``, the default, or ``"test"``.
        draw: Draws something with a ``prompt``: a problem, or what ``make_problem`` makes one of.
        make_problem: Makes a problem of an id and what was drawn; by default the problem is what was drawn, with that id.

    Raises:
        DataError: There is no such split.
    """
    split = "train" if split is None else split
    if split not in SPLITS:
        raise DataError(f"dataset {dataset!r} has no split {split!r}; choose one of {', '.join(SPLITS)}")
    problems = GeneratedProblems(dataset, split, draw, make_problem or _with_id)
    return Dataset(dataset, problems, fingerprint(problems[:_SAMPLE]))


def _with_id(identifier: str, problem: Any) -> Problem:
    return Problem(identifier, problem.prompt, problem.answer, problem.metadata)


@dataclass(frozen=True)
class GeneratedProblems(Sequence[Problem], Generic[Drawn]):
    """A split; its fingerprint is that of its first hundred problems, from whose generator all others follow."""

    dataset: str
    split: str
    draw: Callable[[random.Random], Drawn]
    make_problem: Callable[[str, Drawn], Problem]

    def __len__(self) -> int:
        return PROBLEMS_PER_SPLIT

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        try:
            number = range(len(self))[index]
        except IndexError:
            raise IndexError(f"problem {index} of {len(self)}") from None
        generator = random.Random(f"{self.dataset}/{self.split}/{number}")
        for _ in range(_MAX_DRAWS):
            drawn = self.draw(generator)
            if _is_for_test(drawn.prompt) == (self.split == "test"):  # type: ignore[attr-defined]
                return self.make_problem(f"{self.dataset}-{self.split}-{number}", drawn)
        raise AssertionError(f"no problem of {self.dataset} is in the {self.split} split")


def _is_for_test(prompt: str) -> bool:
    return hashlib.sha256(prompt.encode()).digest()[0] % TEST_DIVISOR == 0
