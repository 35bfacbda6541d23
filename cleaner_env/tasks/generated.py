"""Problems without end: each is made when it is looked up, from its number alone.

A drawn problem belongs to the test split when the hash of its text says so, whatever number it was drawn under, so no
problem is in both splits. Texts of built-in problems, which models are evaluated on, are in neither.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Set
from functools import partial
from typing import Any, Final, TypeVar

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset, LazyProblems, Problem
from cleaner_env.tasks.loading import fingerprint

__all__ = ["GENERATED", "load_generated", "on_demand"]

GENERATED: Final = "generated"
SPLITS: Final = ("train", "test")
PROBLEMS_PER_SPLIT: Final = 1_000_000
TEST_DIVISOR: Final = 8
_SAMPLE: Final = 100
_MAX_DRAWS: Final = 10_000

Drawn = TypeVar("Drawn")


def on_demand(dataset: str, split: str | None, count: int, make: Callable[[str, int], Problem]) -> Dataset:
    """Returns a data set whose problems are made when they are looked up.

    Args:
        dataset: Its name.
        split: ``"train"``, the default, or ``"test"``.
        count: Problems in a split.
        make: Makes a problem of the split's name and the problem's number; the same one each time. It can be pickled.

    Returns:
        The data set; its fingerprint is that of its first hundred problems, from whose maker all others follow.

    Raises:
        DataError: There is no such split.
    """
    split = "train" if split is None else split
    if split not in SPLITS:
        raise DataError(f"dataset {dataset!r} has no split {split!r}; choose one of {', '.join(SPLITS)}")
    problems = LazyProblems(range(count), partial(make, split))
    return Dataset(dataset, problems, fingerprint(problems[:_SAMPLE]))


def load_generated(
    dataset: str,
    split: str | None,
    draw: Callable[[random.Random], Drawn],
    make_problem: Callable[[str, Drawn], Problem] | None = None,
    reserved: Set[str] = frozenset(),
) -> Dataset:
    """Loads a data set of generated problems.

    Args:
        dataset: Its name, on which the problems depend.
        split: ``"train"``, the default, or ``"test"``.
        draw: Draws something with a ``prompt``: a problem, or what ``make_problem`` makes one of.
        make_problem: Makes a problem of an id and what was drawn; by default the problem is what was drawn, with that id.
        reserved: Texts that no problem has, since they are kept for evaluation.

    Raises:
        DataError: There is no such split.
    """
    make = partial(_drawn_problem, dataset, draw, make_problem or _with_id, reserved)
    return on_demand(dataset, split, PROBLEMS_PER_SPLIT, make)


def _drawn_problem(
    dataset: str,
    draw: Callable[[random.Random], Any],
    make_problem: Callable[[str, Any], Problem],
    reserved: Set[str],
    split: str,
    number: int,
) -> Problem:
    generator = random.Random(f"{dataset}/{split}/{number}")
    for _ in range(_MAX_DRAWS):
        drawn = draw(generator)
        if drawn.prompt not in reserved and _is_for_test(drawn.prompt) == (split == "test"):
            return make_problem(f"{dataset}-{split}-{number}", drawn)
    raise AssertionError(f"no problem of {dataset} is in the {split} split")


def _with_id(identifier: str, problem: Any) -> Problem:
    return Problem(identifier, problem.prompt, problem.answer, problem.metadata)


def _is_for_test(prompt: str) -> bool:
    return hashlib.sha256(prompt.encode()).digest()[0] % TEST_DIVISOR == 0
