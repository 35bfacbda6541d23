"""Families that lead up to competition problems, from one step of arithmetic on, for small models to begin with."""

from __future__ import annotations

import random
from math import comb, gcd
from typing import Final

from cleaner_env.tasks.builtin.drawing import Family, Parameters, between

__all__ = ["LADDER"]


def _one_step(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b, sign = between(generator, 2, 99), between(generator, 2, 99), generator.choice("+-*")
    if sign == "*":
        a, b = between(generator, 2, 31), between(generator, 2, 31)
    a, b = max(a, b), min(a, b)
    answer = {"+": a + b, "-": a - b, "*": a * b}[sign]
    shown = "\\times" if sign == "*" else sign
    return {"a": a, "b": b, "sign": sign}, f"What is ${a} {shown} {b}$?", answer


def _two_steps(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b, c = between(generator, 2, 20), between(generator, 2, 20), between(generator, 2, 20)
    return {"a": a, "b": b, "c": c}, f"What is $({a} + {b}) \\times {c}$?", (a + b) * c


def _shopping(generator: random.Random) -> tuple[Parameters, str, int]:
    pens, pen, books, book = (between(generator, 2, 15) for _ in range(4))
    statement = (
        f"A pen costs ${pen}$ coins and a notebook costs ${book}$ coins. How many coins do ${pens}$ pens and ${books}$ "
        "notebooks cost together?"
    )
    return {"pens": pens, "pen": pen, "books": books, "book": book}, statement, pens * pen + books * book


def _remainder(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b = between(generator, 100, 9999), between(generator, 3, 97)
    return {"a": a, "b": b}, f"Find the remainder when ${a}$ is divided by ${b}$.", a % b


def _linear_equation(generator: random.Random) -> tuple[Parameters, str, int]:
    x, a, b = between(generator, 0, 99), between(generator, 2, 19), between(generator, 1, 99)
    return {"a": a, "b": b, "right": a * x + b}, f"Find the number $x$ with ${a}x + {b} = {a * x + b}$.", x


def _common_divisor(generator: random.Random) -> tuple[Parameters, str, int]:
    common, a, b = between(generator, 2, 40), between(generator, 2, 25), between(generator, 2, 25)
    a, b = common * a, common * b
    return {"a": a, "b": b}, f"Find the greatest common divisor of ${a}$ and ${b}$.", gcd(a, b)


def _two_numbers(generator: random.Random) -> tuple[Parameters, str, int]:
    small, difference = between(generator, 1, 200), between(generator, 1, 200)
    total = 2 * small + difference
    statement = f"Two numbers add up to ${total}$, and one is ${difference}$ greater than the other. Find the greater one."
    return {"total": total, "difference": difference}, statement, small + difference


def _multiples(generator: random.Random) -> tuple[Parameters, str, int]:
    low, high, divisor = between(generator, 1, 400), between(generator, 500, 3000), between(generator, 4, 30)
    statement = f"How many multiples of ${divisor}$ are there from ${low}$ to ${high}$, both included?"
    return {"low": low, "high": high, "divisor": divisor}, statement, high // divisor - (low - 1) // divisor


def _series(generator: random.Random) -> tuple[Parameters, str, int]:
    first, step, count = between(generator, 1, 15), between(generator, 1, 6), between(generator, 4, 15)
    last = first + step * (count - 1)
    statement = f"Find the sum of the arithmetic sequence ${first}, {first + step}, {first + 2 * step}, \\ldots, {last}$."
    return {"first": first, "step": step, "last": last}, statement, count * (first + last) // 2


def _committees(generator: random.Random) -> tuple[Parameters, str, int]:
    people, seats = between(generator, 5, 11), between(generator, 2, 4)
    statement = f"In how many ways can a committee of ${seats}$ be chosen from ${people}$ people?"
    return {"people": people, "seats": seats}, statement, comb(people, seats)


LADDER: Final[dict[int, tuple[Family, ...]]] = {
    1: (_one_step,),
    2: (_two_steps, _shopping, _remainder),
    3: (_linear_equation, _common_divisor, _two_numbers),
    4: (_multiples, _series, _committees),
}
"""By level."""
