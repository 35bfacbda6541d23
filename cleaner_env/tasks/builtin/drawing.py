"""What families of problems share: a family draws parameters, states a problem and solves it by the short way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

__all__ = ["Family", "Parameters", "between", "choose", "fraction_statement", "name_of"]

Parameters: TypeAlias = dict[str, Any]
Family: TypeAlias = Callable[[random.Random], tuple[Parameters, str, int]]
"""Returns the parameters, with which a test can solve the problem again by exhaustion, the statement and the answer."""


def between(generator: random.Random, low: int, high: int) -> int:
    """Draws an integer, both ends included."""
    return generator.randrange(low, high + 1)


def choose(generator: random.Random, values: Sequence[int], count: int) -> list[int]:
    """Draws different values, in ascending order."""
    left = list(values)
    return sorted(left.pop(generator.randrange(len(left))) for _ in range(count))


def fraction_statement(what: str, value: Fraction) -> tuple[str, int]:
    """Returns the usual way to ask for a fraction by one integer, and that integer."""
    statement = f"{what} is $\\frac{{m}}{{n}}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    return statement, value.numerator + value.denominator


def name_of(family: Family) -> str:
    """Returns the family's name, as ids and metadata show it."""
    return family.__name__.strip("_").replace("_", "-")
