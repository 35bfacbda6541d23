"""More families of competition problems."""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb, isqrt, prod
from typing import Final

from cleaner_env.tasks.builtin.drawing import Family, Parameters, between, fraction_statement

__all__ = ["COMPETITION"]


def _gcd_sum(generator: random.Random) -> tuple[Parameters, str, int]:
    exponents = [between(generator, 1, 3), between(generator, 1, 2), between(generator, 0, 1)]
    primes = (2, 3, generator.choice((5, 7)))
    n = prod(p**e for p, e in zip(primes, exponents, strict=True))
    # The sum is multiplicative; over a prime power it is (e+1) p^e - e p^(e-1).
    answer = prod((e + 1) * p**e - (e * p ** (e - 1) if e else 0) for p, e in zip(primes, exponents, strict=True))
    return {"n": n}, f"Find the remainder when $\\sum_{{k=1}}^{{{n}}} \\gcd(k, {n})$ is divided by $1000$.", answer % 1000


def _divisors_of_square(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b = between(generator, 3, 20), between(generator, 2, 20)
    # Divisors of n^2 pair up around n; those below n that divide n are all but n itself.
    answer = ((2 * a + 1) * (2 * b + 1) - 1) // 2 - ((a + 1) * (b + 1) - 1)
    statement = (
        f"Let $n = 2^{{{a}}}\\cdot 3^{{{b}}}$. How many positive divisors of $n^2$ are less than $n$ but do not divide $n$?"
    )
    return {"a": a, "b": b}, statement, answer


def _board_tilings(generator: random.Random) -> tuple[Parameters, str, int]:
    width = between(generator, 4, 10)
    counts = [1, 1]
    while len(counts) <= width:
        counts.append(counts[-1] + 2 * counts[-2])
    statement = (
        f"In how many ways can a $2\\times {width}$ board be covered without gaps or overlaps by $1\\times 2$ dominoes, in "
        "either direction, and $2\\times 2$ squares?"
    )
    return {"width": width}, statement, counts[width]


def _no_neighbours(generator: random.Random) -> tuple[Parameters, str, int]:
    n, gap = between(generator, 8, 13), between(generator, 2, 3)
    # k numbers that lie at least `gap` apart: squeeze the gaps out.
    answer = sum(comb(n - (gap - 1) * (k - 1), k) for k in range(1, n + 1) if n - (gap - 1) * (k - 1) >= k)
    statement = (
        f"How many nonempty subsets of $\\{{1, 2, \\ldots, {n}\\}}$ are there in which any two different "
        "elements differ by "
        f"at least ${gap}$?"
    )
    return {"n": n, "gap": gap}, statement, answer


def _unit_fractions(generator: random.Random) -> tuple[Parameters, str, int]:
    exponents = [between(generator, 1, 3), between(generator, 0, 2), between(generator, 0, 1)]
    n = prod(p**e for p, e in zip((2, 3, 5), exponents, strict=True))
    # (x - n)(y - n) = n^2.
    answer = prod(2 * e + 1 for e in exponents)
    statement = f"How many ordered pairs $(x, y)$ of positive integers satisfy $\\frac1x + \\frac1y = \\frac1{{{n}}}$?"
    return {"n": n}, statement, answer


def _power_sums(generator: random.Random) -> tuple[Parameters, str, int]:
    n, power = between(generator, 50, 400), between(generator, 2, 3)
    total = n * (n + 1) * (2 * n + 1) // 6 if power == 2 else (n * (n + 1) // 2) ** 2
    statement = f"Find the remainder when $1^{power} + 2^{power} + 3^{power} + \\cdots + {n}^{power}$ is divided by $1000$."
    return {"n": n, "power": power}, statement, total % 1000


def _integer_triangles(generator: random.Random) -> tuple[Parameters, str, int]:
    perimeter = between(generator, 20, 150)
    # Alcuin's sequence: the nearest integer to p^2/48, or to (p+3)^2/48 for an odd p.
    square = perimeter**2 if perimeter % 2 == 0 else (perimeter + 3) ** 2
    statement = f"How many triangles that are not congruent have sides of integer length and a perimeter of ${perimeter}$?"
    return {"perimeter": perimeter}, statement, (2 * square + 48) // 96


def _largest_card(generator: random.Random) -> tuple[Parameters, str, int]:
    n, drawn = between(generator, 8, 14), between(generator, 2, 4)
    what = (
        f"Cards numbered from $1$ to ${n}$ are shuffled and ${drawn}$ of them are drawn at once. The expected value of the "
        "largest number drawn"
    )
    statement, answer = fraction_statement(what, Fraction(drawn * (n + 1), drawn + 1))
    return {"n": n, "drawn": drawn}, statement, answer


def _grid_rectangles(generator: random.Random) -> tuple[Parameters, str, int]:
    a, b = between(generator, 3, 7), between(generator, 3, 7)
    squares = sum((a - k) * (b - k) for k in range(min(a, b)))
    statement = (
        f"The lines of a grid divide a rectangle into ${a}$ rows and ${b}$ columns of unit squares. How many "
        "rectangles whose "
        "sides lie on lines of the grid are not squares?"
    )
    return {"a": a, "b": b}, statement, comb(a + 1, 2) * comb(b + 1, 2) - squares


def _palindromes(generator: random.Random) -> tuple[Parameters, str, int]:
    divisor = generator.choice((2, 3, 4, 6, 7, 8, 9, 11, 12, 13))
    halves = range(1, 100)
    all_of_them = [*range(1, 10), *range(11, 100, 11)]
    all_of_them += [int(f"{half}{middle}{half}") for half in range(1, 10) for middle in range(10)]
    all_of_them += [int(f"{half}{str(half)[::-1]}") for half in halves if half >= 10]
    statement = (
        f"How many positive integers less than $10000$ are divisible by ${divisor}$ and read the same from left to right "
        "as from right to left?"
    )
    return {"divisor": divisor}, statement, sum(value % divisor == 0 for value in all_of_them)


def _boxes(generator: random.Random) -> tuple[Parameters, str, int]:
    balls, boxes = generator.choice(
        ((5, 2), (5, 3), (6, 2), (6, 3), (6, 4), (7, 2), (7, 3), (7, 4), (7, 5), (8, 2), (8, 3))
    )
    table = [[1]]
    for n in range(1, balls + 1):
        table.append([0] + [(k * table[-1][k] if k < len(table[-1]) else 0) + table[-1][k - 1] for k in range(1, n + 1)])
    people = generator.choice(("students", "climbers", "singers", "engineers"))
    statement = (
        f"In how many ways can ${balls}$ {people} form ${boxes}$ groups, each with at least one member, where neither the "
        "groups nor the places in a group have an order?"
    )
    return {"balls": balls, "boxes": boxes}, statement, table[balls][boxes]


def _affine_sequence(generator: random.Random) -> tuple[Parameters, str, int]:
    start, factor, step = between(generator, 1, 9), between(generator, 2, 9), between(generator, 1, 9)
    index = between(generator, 100, 2000)
    # a_n = r^(n-1) a_1 + s (r^(n-1) - 1)/(r - 1); the modulus is widened so that the division is exact.
    wide = 1000 * (factor - 1)
    power = pow(factor, index - 1, wide)
    answer = (power * start + step * ((power - 1) % wide // (factor - 1))) % 1000
    statement = (
        f"A sequence has $a_1 = {start}$ and $a_{{n+1}} = {factor}a_n + {step}$ for every $n \\ge 1$. Find the remainder "
        f"when $a_{{{index}}}$ is divided by $1000$."
    )
    return {"start": start, "factor": factor, "step": step, "index": index}, statement, answer


def _trailing_zeros(generator: random.Random) -> tuple[Parameters, str, int]:
    n, base = between(generator, 100, 900), generator.choice((6, 8, 9, 10, 12, 14, 15, 18))
    factors = {p: e for p in (2, 3, 5, 7) for e in [_exponent(base, p)] if e}
    answer = min(_legendre(n, p) // e for p, e in factors.items())
    statement = f"When ${n}!$ is written in base ${base}$, with how many zeros does it end?"
    return {"n": n, "base": base}, statement, answer


def _exponent(number: int, prime: int) -> int:
    return 0 if number % prime else 1 + _exponent(number // prime, prime)


def _legendre(n: int, prime: int) -> int:
    return 0 if n < prime else n // prime + _legendre(n // prime, prime)


def _digits_below_power(generator: random.Random) -> tuple[Parameters, str, int]:
    power, less = between(generator, 20, 100), between(generator, 2, 999)
    # 10^n - k = (10^n - 1) - (k - 1): the digits of k - 1 are taken from nines.
    answer = 9 * power - sum(map(int, str(less - 1)))
    return {"power": power, "less": less}, f"Find the sum of the digits of $10^{{{power}}} - {less}$.", answer


def _disc_points(generator: random.Random) -> tuple[Parameters, str, int]:
    square = between(generator, 40, 300)
    answer = sum(2 * isqrt(square - x * x) + 1 for x in range(-isqrt(square), isqrt(square) + 1))
    statement = f"How many points $(x, y)$ with integer coordinates satisfy $x^2 + y^2 \\le {square}$?"
    return {"square": square}, statement, answer


COMPETITION: Final[tuple[Family, ...]] = (
    _gcd_sum,
    _divisors_of_square,
    _board_tilings,
    _no_neighbours,
    _unit_fractions,
    _power_sums,
    _integer_triangles,
    _largest_card,
    _grid_rectangles,
    _palindromes,
    _boxes,
    _affine_sequence,
    _trailing_zeros,
    _digits_below_power,
    _disc_points,
)
"""As hard as the easier half of an AIME."""
