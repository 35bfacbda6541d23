"""Every built-in AIME problem is solved again, by exhaustion or from first principles."""

from fractions import Fraction
from functools import cache
from itertools import combinations, count, pairwise, permutations, product
from math import factorial, gcd, hypot

import pytest

from cleaner_env.errors import DataError
from cleaner_env.tasks import get_task
from cleaner_env.tasks.builtin.aime import LEVELS
from cleaner_env.tasks.builtin.drawing import name_of

FINGERPRINT = "c4a5a577d18e48fb51e90cc5d74b42a04962f99b848ffa6b1678da44ff210e51"
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


def gcd_sum(n):
    return sum(gcd(k, n) for k in range(1, n + 1)) % 1000


def divisors_of_square(a, b):
    n = 2**a * 3**b
    divisors = (2**i * 3**j for i in range(2 * a + 1) for j in range(2 * b + 1))
    return sum(d < n and n % d != 0 for d in divisors)


def board_tilings(width):
    @cache
    def ways(covered):
        free = next((cell for cell in range(2 * width) if cell not in covered), None)
        if free is None:
            return 1
        column = free // 2
        shapes = [(free, free + 2)]
        if free % 2 == 0:
            shapes += [(free, free + 1), (free, free + 1, free + 2, free + 3)]
        fits = (shape for shape in shapes if max(shape) < 2 * width and not covered & set(shape) and column < width)
        return sum(ways(covered | set(shape)) for shape in fits)

    return ways(frozenset())


def no_neighbours(n, gap):
    subsets = (subset for size in range(1, n + 1) for subset in combinations(range(n), size))
    return sum(all(b - a >= gap for a, b in pairwise(subset)) for subset in subsets)


def unit_fractions(n):
    return sum((n * x) % (x - n) == 0 for x in range(n + 1, n * n + n + 1))


def power_sums(n, power):
    return sum(k**power for k in range(1, n + 1)) % 1000


def integer_triangles(perimeter):
    return sum(
        a + b > perimeter - a - b >= b for a in range(1, perimeter // 3 + 1) for b in range(a, (perimeter - a) // 2 + 1)
    )


def largest_card(n, drawn):
    hands = list(combinations(range(1, n + 1), drawn))
    expected = Fraction(sum(map(max, hands)), len(hands))
    return expected.numerator + expected.denominator


def grid_rectangles(a, b):
    heights = [bottom - top for top, bottom in combinations(range(a + 1), 2)]
    widths = [right - left for left, right in combinations(range(b + 1), 2)]
    return sum(height != width for height, width in product(heights, widths))


def palindromes(divisor):
    return sum(str(n) == str(n)[::-1] for n in range(divisor, 10_000, divisor))


def boxes(balls, boxes):
    partitions = {
        frozenset(frozenset(i for i in range(balls) if where[i] == box) for box in range(boxes))
        for where in product(range(boxes), repeat=balls)
        if len(set(where)) == boxes
    }
    return len(partitions)


def affine_sequence(start, factor, step, index):
    value = start
    for _ in range(index - 1):
        value = factor * value + step
    return value % 1000


def trailing_zeros(n, base):
    value, zeros = factorial(n), 0
    while value % base == 0:
        value, zeros = value // base, zeros + 1
    return zeros


def digits_below_power(power, less):
    return sum(int(digit) for digit in str(10**power - less))


def disc_points(square):
    return sum(x * x + y * y <= square for x, y in product(range(-18, 19), repeat=2))


def one_step(a, b, sign):
    return {"+": sum((a, b)), "-": len(range(b, a)), "*": sum(a for _ in range(b))}[sign]


def two_steps(a, b, c):
    return sum(a + b for _ in range(c))


def shopping(pens, pen, books, book):
    return sum([pen] * pens + [book] * books)


def remainder(a, b):
    while a >= b:
        a -= b
    return a


def linear_equation(a, b, right):
    (x,) = (x for x in range(100) if a * x + b == right)
    return x


def common_divisor(a, b):
    return max(d for d in range(1, min(a, b) + 1) if a % d == b % d == 0)


def two_numbers(total, difference):
    (greater,) = (x for x in range(total + 1) if x - (total - x) == difference)
    return greater


def multiples(low, high, divisor):
    return sum(n % divisor == 0 for n in range(low, high + 1))


def series(first, step, last):
    return sum(range(first, last + 1, step))


def committees(people, seats):
    return len(list(combinations(range(people), seats)))


def solved_again(problem):
    solve = globals()[problem.metadata["family"].replace("-", "_")]
    return solve(**problem.metadata.get("parameters", {}))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_answer_is_right(problem):
    assert int(problem.answer) == solved_again(problem)


def test_answers_are_aime_integers_and_problems_differ():
    assert len(PROBLEMS) >= 60
    assert all(0 <= int(problem.answer) <= 999 for problem in PROBLEMS)
    assert len({problem.id for problem in PROBLEMS}) == len({problem.prompt for problem in PROBLEMS}) == len(PROBLEMS)


def test_problems_are_the_same_in_every_run():
    assert get_task("aime").load("builtin").fingerprint == FINGERPRINT


FAMILY_NAMES = {name_of(family): level for level in LEVELS for family in LEVELS[level]}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_generated_problems_are_right_too(level, split):
    dataset = get_task("aime").load(f"generated_level{level}", split)
    found = dataset.problems[: 6 * len(LEVELS[level])]
    for problem in found:
        assert problem.metadata["level"] == FAMILY_NAMES[problem.metadata["family"]] == level
        assert int(problem.answer) == solved_again(problem), problem
        assert 0 <= int(problem.answer) <= 999, problem


def test_the_generated_splits_are_disjoint_and_never_run_out():
    train, test = (get_task("aime").load("generated", split) for split in ("train", "test"))
    assert len(train.problems) == len(test.problems) >= 1_000_000
    prompts = [{problem.prompt for problem in dataset.problems[:400]} for dataset in (train, test)]
    assert not prompts[0] & prompts[1]
    assert min(map(len, prompts)) > 350
    assert {problem.metadata["level"] for problem in train.problems[:100]} == {1, 2, 3, 4, 5}
    assert train.problems[7] == get_task("aime").load("generated").problems[7]
    assert train.problems[-1].id == "generated-train-999999"
    assert train.fingerprint != test.fingerprint
    with pytest.raises(IndexError):
        train.problems[1_000_000]
    with pytest.raises(DataError, match="no split 'dev'; choose one of train, test"):
        get_task("aime").load("generated", "dev")
