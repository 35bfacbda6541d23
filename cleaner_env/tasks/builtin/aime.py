"""Competition problems with integer answers: families with drawn parameters, and problems that stand alone.

A family draws its parameters, states the problem and solves it by the short way. The parameters stay in the problem's
metadata, so that the tests can solve it again by exhaustion.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from math import comb, factorial, gcd, prod
from typing import Final

from cleaner_env.tasks.base import Problem
from cleaner_env.tasks.builtin.competition import COMPETITION
from cleaner_env.tasks.builtin.drawing import Family, Parameters, between, choose, fraction_statement, name_of
from cleaner_env.tasks.builtin.ladder import LADDER

__all__ = ["FAMILIES", "LEVELS", "draw", "problems"]

_SEED: Final = 20261129
_PER_FAMILY: Final = 3


def problems() -> list[Problem]:
    """Returns the built-in problems, always the same."""
    made = []
    for family in FAMILIES:
        generator = random.Random(f"{_SEED} {family.__name__}")
        statements: set[str] = set()
        while len(statements) < _PER_FAMILY:
            problem = draw([family], generator)
            if problem.prompt not in statements:
                statements.add(problem.prompt)
                identifier = f"builtin-aime-{name_of(family)}-{len(statements)}"
                made.append(Problem(identifier, problem.prompt, problem.answer, problem.metadata))
    return made + [
        Problem(f"builtin-aime-{name}", statement, str(answer), {"family": name, "level": 5})
        for name, statement, answer in _ALONE
    ]


def draw(families: Sequence[Family], generator: random.Random) -> Problem:
    """Draws a problem of one of the families."""
    family = families[generator.randrange(len(families))] if len(families) > 1 else families[0]
    parameters, statement, answer = family(generator)
    name = name_of(family)
    metadata = {"family": name, "level": _LEVEL_OF.get(name, 5), "parameters": parameters}
    return Problem(name, statement, str(answer), metadata)


def _digit_sum(generator: random.Random) -> tuple[Parameters, str, int]:
    total = between(generator, 9, 24)
    # Four digits from 0 to 9: stars and bars, with those digits taken out that would exceed 9.
    answer = sum((-1) ** k * comb(4, k) * comb(total - 10 * k + 3, 3) for k in range(5) if total >= 10 * k)
    return {"total": total}, f"How many positive integers less than $10000$ have digits that add up to ${total}$?", answer


def _power_residue(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b = between(generator, 3, 19), between(generator, 3, 19)
    m, n = between(generator, 500, 3000), between(generator, 500, 3000)
    statement = f"Find the remainder when ${a}^{{{m}}} + {b}^{{{n}}}$ is divided by $1000$."
    return {"a": a, "b": b, "m": m, "n": n}, statement, (pow(a, m, 1000) + pow(b, n, 1000)) % 1000


def _lattice_paths(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b = between(generator, 5, 6), between(generator, 5, 6)
    c, d = between(generator, 1, a - 1), between(generator, 1, b - 1)
    answer = comb(a + b, a) - comb(c + d, c) * comb(a + b - c - d, a - c)
    statement = (
        f"An ant walks on the grid of integer points from $(0,0)$ to $({a},{b})$. Each step goes one unit to the right or "
        f"one unit up. How many of its walks avoid the point $({c},{d})$?"
    )
    return {"a": a, "b": b, "c": c, "d": d}, statement, answer


def _no_run_of_heads(generator: random.Random) -> tuple[Parameters, str, int]:
    run, flips = between(generator, 2, 4), between(generator, 6, 9)
    # Sequences of n flips without the run begin with 0 to run - 1 heads and a tail.
    counts = [2**n for n in range(run)]
    while len(counts) <= flips:
        counts.append(sum(counts[-run:]))
    probability = Fraction(counts[flips], 2**flips)
    what = f"A fair coin is flipped ${flips}$ times. The probability that it never shows heads ${run}$ times in a row"
    statement, answer = fraction_statement(what, probability)
    return {"run": run, "flips": flips}, statement, answer


def _remainders(generator: random.Random) -> tuple[Parameters, str, int]:
    moduli = choose(generator, (7, 8, 9, 11, 13), 3)
    while prod(moduli) > 1000:
        moduli = choose(generator, (7, 8, 9, 11, 13), 3)
    remainders = [between(generator, 1, modulus - 1) for modulus in moduli]
    whole = prod(moduli)
    answer = sum(r * (whole // m) * pow(whole // m, -1, m) for r, m in zip(remainders, moduli, strict=True)) % whole
    conditions = ", ".join(f"${r}$ when divided by ${m}$" for r, m in zip(remainders, moduli, strict=True))
    statement = f"Find the least positive integer that leaves these remainders: {conditions}."
    return {"moduli": moduli, "remainders": remainders}, statement, answer


def _pairs_with_lcm(generator: random.Random) -> tuple[Parameters, str, int]:
    exponents = [between(generator, 1, 4), between(generator, 1, 3), between(generator, 1, 2)]
    number = prod(p**e for p, e in zip((2, 3, 5), exponents, strict=True))
    statement = (
        f"How many ordered pairs $(a,b)$ of positive integers have least common multiple ${number}$? "
        "The pairs $(a,b)$ and $(b,a)$ count as different unless $a=b$."
    )
    return {"number": number}, statement, prod(2 * e + 1 for e in exponents)


def _interior_points(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b, c, d = 0, 0, 0, 0
    while abs(a * d - b * c) < 200:
        a, b, c, d = (between(generator, 3, 40) for _ in range(4))
    border = gcd(a, b) + gcd(c, d) + gcd(a - c, b - d)
    # Pick: area = inside + border / 2 - 1.
    answer = (abs(a * d - b * c) - border + 2) // 2
    statement = (
        "Find the number of points with integer coordinates that lie strictly inside the triangle with vertices "
        f"$(0,0)$, $({a},{b})$ and $({c},{d})$."
    )
    return {"a": a, "b": b, "c": c, "d": d}, statement, answer


def _divisible_by_one(generator: random.Random) -> tuple[Parameters, str, int]:
    p, q, r = choose(generator, (2, 3, 5, 7, 11, 13), 3)
    n = between(generator, 400, 999)
    pairs = n // (p * q) + n // (p * r) + n // (q * r)
    answer = n // p + n // q + n // r - 2 * pairs + 3 * (n // (p * q * r))
    statement = f"How many of the integers from $1$ to ${n}$ are divisible by exactly one of ${p}$, ${q}$ and ${r}$?"
    return {"p": p, "q": q, "r": r, "n": n}, statement, answer


def _last_one_standing(generator: random.Random) -> tuple[Parameters, str, int]:
    people, step = between(generator, 100, 999), between(generator, 4, 9)
    place = 0
    for size in range(2, people + 1):
        place = (place + step) % size
    statement = (
        f"${people}$ people, numbered from $1$ to ${people}$ in order, sit in a circle. Counting starts with person $1$ "
        f"and goes round and round; every ${step}$th person counted leaves at once and is counted no more. "
        "What is the number of the last person who is left?"
    )
    return {"people": people, "step": step}, statement, place + 1


def _few_fixed_points(generator: random.Random) -> tuple[Parameters, str, int]:
    guests = 6
    own = between(generator, 0, 3)
    others = guests - own
    derangements = sum((-1) ** k * factorial(others) // factorial(k) for k in range(others + 1))
    statement = (
        f"${guests}$ guests leave a party in the dark, and each takes one of their ${guests}$ hats. "
        f"In how many ways can exactly ${own}$ of the guests take their own hat?"
    )
    return {"guests": guests, "own": own}, statement, comb(guests, own) * derangements


FAMILIES: Final[tuple[Family, ...]] = (
    _digit_sum,
    _power_residue,
    _lattice_paths,
    _no_run_of_heads,
    _remainders,
    _pairs_with_lcm,
    _interior_points,
    _divisible_by_one,
    _last_one_standing,
    _few_fixed_points,
    *COMPETITION,
)
"""The families that the built-in problems are drawn from."""

_FEW_MEMBERS: Final = frozenset(
    {
        "board-tilings",
        "boxes",
        "committees",
        "digit-sum",
        "few-fixed-points",
        "gcd-sum",
        "grid-rectangles",
        "largest-card",
        "no-neighbours",
        "no-run-of-heads",
        "pairs-with-lcm",
        "palindromes",
        "unit-fractions",
    }
)
LEVELS: Final[dict[int, tuple[Family, ...]]] = {
    level: tuple(family for family in families if name_of(family) not in _FEW_MEMBERS)
    for level, families in {**LADDER, 5: FAMILIES}.items()
}
"""The families that problems are generated from without end, by level: 1 is one step of arithmetic, 5 as hard as the
built-in problems. Families with less than 50 members are left out."""

_LEVEL_OF: Final = {name_of(family): level for level in LADDER for family in LADDER[level]}

_ALONE: Final = (
    (
        "shifted-factorials",
        "Find the remainder when $1\\cdot 1! + 2\\cdot 2! + 3\\cdot 3! + \\cdots + 13\\cdot 13!$ is divided by $1000$.",
        (factorial(14) - 1) % 1000,
    ),
    (
        "cubes-and-squares",
        "How many of the integers from $1$ to $1000$ are neither perfect squares nor perfect cubes?",
        1000 - 31 - 10 + 3,
    ),
    (
        "root-squares",
        "The polynomial $x^3 - 14x^2 + 53x - 40$ has roots $r$, $s$ and $t$. Find $r^3 + s^3 + t^3$.",
        14**3 - 3 * 14 * 53 + 3 * 40,
    ),
    (
        "chord",
        "Points $A$, $B$ and $C$ lie on a circle, with $AB = 13$, $BC = 14$ and $CA = 15$. The radius of the circle is "
        "$\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
        65 + 8,
    ),
    (
        "spaced-seats",
        "In a row of $14$ numbered seats, $5$ identical reserved signs are put on seats so that no two signs are on "
        "neighbouring seats. In how many ways can this be done?",
        comb(10, 5),
    ),
    (
        "three-dice",
        "Three fair six-sided dice are rolled. The probability that the largest number shown is the sum of the other two "
        "is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
        5 + 24,
    ),
    (
        "digits-in-base",
        "Find the sum of all positive integers that have exactly three digits in base $4$ and exactly two digits in "
        "base $6$.",
        sum(range(16, 36)),
    ),
    (
        "telescoping",
        "The sum $\\frac{1}{1\\cdot 4} + \\frac{1}{4\\cdot 7} + \\frac{1}{7\\cdot 10} + \\cdots + \\frac{1}{58\\cdot 61}$ "
        "is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
        20 + 61,
    ),
    (
        "tangent-box",
        "A rectangular box has edges whose lengths are positive integers, volume $360$ and surface area $324$. Find the "
        "sum of the squares of the lengths of its three edges.",
        5**2 + 6**2 + 12**2,
    ),
    (
        "period-five",
        "A sequence has $a_1 = 3$, $a_2 = 7$ and $a_{n+2} = \\frac{a_{n+1}+1}{a_n}$ for every $n \\ge 1$. The sum of its "
        "first $50$ terms is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find the "
        "remainder when $m+n$ is divided by $1000$.",
        (2890 + 21) % 1000,
    ),
)
