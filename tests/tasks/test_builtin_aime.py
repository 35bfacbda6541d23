"""Every built-in AIME problem is solved again, by exhaustion or from first principles."""

from fractions import Fraction
from itertools import combinations, count, pairwise, permutations, product
from math import gcd, hypot

import pytest

from cleaner_env.tasks import get_task

PROBLEMS = get_task("aime").load("builtin").problems


def digit_sum(total):
    return sum(sum(map(int, str(n))) == total for n in range(1, 10_000))


def power_residue(a, b, m, n):
    left = right = 1
    for _ in range(m):
        left = left * a % 1000
    for _ in range(n):
        right = right * b % 1000
    return (left + right) % 1000


def lattice_paths(a, b, c, d):
    steps = (set(ups) for ups in combinations(range(a + b), b))
    return sum(sum(u < c + d for u in ups) != d for ups in steps)


def no_run_of_heads(run, flips):
    good = sum("H" * run not in "".join(flip) for flip in product("HT", repeat=flips))
    probability = Fraction(good, 2**flips)
    return probability.numerator + probability.denominator


def remainders(moduli, remainders):
    return next(n for n in count(1) if all(n % m == r for m, r in zip(moduli, remainders, strict=True)))


def pairs_with_lcm(number):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return sum(a * b // gcd(a, b) == number for a, b in product(divisors, repeat=2))


def interior_points(a, b, c, d):
    def side(px, py, qx, qy, x, y):
        return (qx - px) * (y - py) - (qy - py) * (x - px)

    found = 0
    for x, y in product(range(41), repeat=2):
        sides = (side(0, 0, a, b, x, y), side(a, b, c, d, x, y), side(c, d, 0, 0, x, y))
        found += all(s > 0 for s in sides) or all(s < 0 for s in sides)
    return found


def divisible_by_one(p, q, r, n):
    return sum((k % p == 0) + (k % q == 0) + (k % r == 0) == 1 for k in range(1, n + 1))


def last_one_standing(people, step):
    circle = list(range(1, people + 1))
    while len(circle) > 1:
        turn = (step - 1) % len(circle)
        circle = circle[turn + 1 :] + circle[:turn]
    return circle[0]


def few_fixed_points(guests, own):
    return sum(sum(map(int.__eq__, hats, range(guests))) == own for hats in permutations(range(guests)))


def shifted_factorials():
    total = factorial = 1
    for k in range(2, 14):
        factorial *= k
        total += k * factorial
    return total % 1000


def cubes_and_squares():
    powers = {k**2 for k in range(32)} | {k**3 for k in range(11)}
    return sum(n not in powers for n in range(1, 1001))


def root_squares():
    return sum(x**3 for x in range(100) if x**3 - 14 * x**2 + 53 * x - 40 == 0)


def chord():
    # B = (0, 0), C = (14, 0); the centre is on x = 7 and as far from A as from B.
    x = Fraction(13**2 - 15**2 + 14**2, 28)
    height = Fraction(12)
    assert x**2 + height**2 == 13**2
    assert (14 - x) ** 2 + height**2 == 15**2
    centre = (x**2 + height**2 - 14 * x) / (2 * height)
    radius = Fraction(hypot(7, centre)).limit_denominator(100)
    return radius.numerator + radius.denominator


def spaced_seats():
    return sum(all(b - a > 1 for a, b in pairwise(seats)) for seats in combinations(range(14), 5))


def three_dice():
    good = sum(2 * max(dice) == sum(dice) for dice in product(range(1, 7), repeat=3))
    probability = Fraction(good, 216)
    return probability.numerator + probability.denominator


def digits_in_base():
    def digits(n, base):
        return 0 if n == 0 else 1 + digits(n // base, base)

    return sum(n for n in range(1, 1000) if digits(n, 4) == 3 and digits(n, 6) == 2)


def telescoping():
    total = sum(Fraction(1, k * (k + 3)) for k in range(1, 59, 3))
    return total.numerator + total.denominator


def tangent_box():
    boxes = {
        (a, b, 360 // (a * b))
        for a, b in product(range(1, 361), repeat=2)
        if 360 % (a * b) == 0 and a <= b <= 360 // (a * b)
    }
    answers = {a * a + b * b + c * c for a, b, c in boxes if 2 * (a * b + b * c + c * a) == 324}
    (answer,) = answers
    return answer


def period_five():
    terms = [Fraction(3), Fraction(7)]
    while len(terms) < 50:
        terms.append((terms[-1] + 1) / terms[-2])
    total = sum(terms)
    return (total.numerator + total.denominator) % 1000


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_answer_is_right(problem):
    solve = globals()[problem.metadata["family"].replace("-", "_")]
    assert int(problem.answer) == solve(**problem.metadata.get("parameters", {}))


def test_answers_are_aime_integers_and_problems_differ():
    assert len(PROBLEMS) >= 30
    assert all(0 <= int(problem.answer) <= 999 for problem in PROBLEMS)
    assert len({problem.id for problem in PROBLEMS}) == len({problem.prompt for problem in PROBLEMS}) == len(PROBLEMS)


def test_problems_are_the_same_in_every_run():
    assert (
        get_task("aime").load("builtin").fingerprint == "c65d999285471b6f4140be4fb6b927dbcaf386b6a91f6b0a4e253020518901ab"
    )
