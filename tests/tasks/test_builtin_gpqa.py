"""The right option of every built-in question is found again in another way: by solving, counting or integrating."""

import random
import re
from itertools import product
from math import exp, log, sqrt

import numpy as np
import pytest

from cleaner_env.tasks import get_task
from cleaner_env.tasks.builtin.gpqa import questions
from cleaner_env.tasks.builtin.science import SCIENCE, draw_question

QUESTIONS = {question.id.removeprefix("builtin-gpqa-"): question for question in questions()}


def root(function, low, high):
    rising = function(low) < 0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < 0) == rising else (low, middle)
    return low


def compton():
    energy, mass, cosine = 300.0, 511.0, np.cos(np.radians(75))

    def mass_excess(after):
        electron = energy + mass - after
        momentum_squared = energy**2 + after**2 - 2 * energy * after * cosine
        return electron**2 - momentum_squared - mass**2

    return root(mass_excess, 1.0, energy)


def box_transition():
    lowest_ev = 0.37603 / 1.2**2
    return 1239.842 / (lowest_ev * 4**2 - lowest_ev * 2**2)


def electron_momentum():
    return root(lambda momentum: sqrt(momentum**2 + 0.511**2) - 0.511 - 1.5, 0.0, 10.0)


def orbiting_clock():
    radius, schwarzschild = 6.0, 1.0
    angular_velocity_squared = schwarzschild / (2 * radius**3)
    return sqrt(1 - schwarzschild / radius - radius**2 * angular_velocity_squared)


def two_magnets():
    half = np.radians(50) / 2
    along = np.array([np.cos(half), np.sin(half)])
    up, down = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    return float((along @ up) ** 2 * (down @ along) ** 2)


def upper_level():
    thermal_joule = 1.380649e-23 * 400
    weights = [exp(-level * 1.602177e-22 / thermal_joule) for level in (0.0, 30.0, 30.0, 30.0)]
    return sum(weights[1:]) / sum(weights)


def oscillator_moment():
    lowering = np.diag(np.sqrt(np.arange(1, 20)), 1)
    position = (lowering + lowering.T) / np.sqrt(2)
    return float(np.linalg.matrix_power(position, 4)[2, 2])


def two_bodies():
    hot, cold, work, heat = 500.0, 280.0, 0.0, 1e-3
    while hot > cold:
        done = heat * (1 - cold / hot)
        hot, cold, work = hot - heat / 2, cold + (heat - done) / 2, work + done
    return work


def buffer():
    sodium, chloride, total = 0.075 / 0.350, 0.015 / 0.350, 0.125 / 0.350
    constant = 10**-4.76

    def charge(ph):
        hydrogen = 10**-ph
        return sodium + hydrogen - chloride - total * constant / (constant + hydrogen) - 1e-14 / hydrogen

    return root(charge, 0.0, 14.0)


def copper_zinc():
    return 1.10 - 0.059160 / 2 * (np.log10(0.50) - np.log10(0.00020))


def activation_energy():
    def excess(energy):
        return exp(-energy / (8.3145e-3 * 338.15)) / exp(-energy / (8.3145e-3 * 298.15)) - 45

    return root(excess, 1.0, 300.0)


def intermediate_peak():
    a, b, time, step = 1.0, 0.0, 0.0, 1e-3
    while 0.120 * a >= 0.030 * b:
        a, b, time = a - step * 0.120 * a, b + step * (0.120 * a - 0.030 * b), time + step
    return time


def common_ion():
    return root(lambda dissolved: dissolved * (0.020 + 2 * dissolved) ** 2 - 3.9e-11, 0.0, 1e-3)


def stereoisomers():
    return len({min(centres, centres[::-1]) for centres in product("RS", repeat=4)})


def isotope_pattern():
    pattern = np.convolve(np.convolve([50.69, 49.31], [50.69, 49.31]), [75.76, 24.24])
    return pattern[1] / pattern[0]


def pi_gap():
    levels = np.linalg.eigvalsh(np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1))
    return levels[3] - levels[2]


def healthy_parents():
    frequency = {"A": 0.8, "a": 0.2}
    people = [(x + y, frequency[x] * frequency[y]) for x, y in product("Aa", repeat=2)]
    couples = [(m, f, p * q) for (m, p), (f, q) in product(people, repeat=2) if "aa" not in (m, f)]
    affected = sum(p * sum(x + y == "aa" for x, y in product(m, f)) / 4 for m, f, p in couples)
    return affected / sum(p for _, _, p in couples)


def linked_cross():
    gametes = {"AB": 0.42, "ab": 0.42, "Ab": 0.08, "aB": 0.08}
    pairs = product(gametes.items(), repeat=2)
    return sum(p * q for (first, p), (second, q) in pairs if (first + second).islower())


def interference():
    offspring, doubles = 100_000, 1_100
    return 1 - doubles / (offspring * 0.14 * 0.22)


def competitive_inhibition():
    free, bound, inhibited = 1.0, 3.0 / 2.0, 4.5 / 1.5
    return bound / (free + bound + inhibited)


def lethal_recessive():
    q = 0.30
    for _ in range(12):
        q = (1 - q) * q / (1 - q * q)
    return q


def resting_potential():
    def current(millivolt):
        u = millivolt / (8.314463 * 310.15 / 96.48533)
        flux = [(1.0, 140.0, 4.0), (0.040, 12.0, 145.0)]
        return sum(p * u * (inside - outside * exp(-u)) / (1 - exp(-u)) for p, inside, outside in flux)

    return root(current, -150.0, -1.0)


def single_infection():
    bacteria, phages = 10**6, 1_800_000
    missed = exp(phages * log(1 - 1 / bacteria))
    once = phages / bacteria * exp((phages - 1) * log(1 - 1 / bacteria))
    return once / (1 - missed)


def unequal_sexes():
    heterozygosity = 1.0
    for _ in range(20):
        heterozygosity -= heterozygosity * (1 / (8 * 5) + 1 / (8 * 45))
    return heterozygosity


def accelerated_electron(volts):
    return 1.22643 / sqrt(volts)


def hydrogen_like_line(charge, low, high):
    return 1239.842 / (13.605693 * charge**2 / low**2 - 13.605693 * charge**2 / high**2)


def star_radius(luminosity, kelvin):
    sigma, sun_watt, sun_metres = 5.670374e-8, 3.828e26, 6.957e8
    return root(lambda r: 4 * np.pi * (r * sun_metres) ** 2 * sigma * kelvin**4 - luminosity * sun_watt, 1e-4, 1e5)


def muon_survival(beta, km):
    proper_s = km * 1000 / (beta * 299_792_458) * sqrt(1 - beta**2)
    left, steps = 1.0, 100_000
    for _ in range(steps):
        left -= left * proper_s / steps / 2.197e-6
    return left


def series_circuit(ohm, millihenry, microfarad, hertz):
    omega = 2j * np.pi * hertz
    return abs(ohm + omega * millihenry * 1e-3 + 1 / (omega * microfarad * 1e-6))


def otto_cycle(ratio, gamma):
    cold, hot = 300.0, 1500.0
    compressed, expanded = cold * ratio ** (gamma - 1), hot / ratio ** (gamma - 1)
    return 1 - (expanded - cold) / (hot - compressed)


def weak_acid(pka, molar):
    def charge(ph):
        return 10**-ph - molar * 10**-pka / (10**-pka + 10**-ph) - 1e-14 / 10**-ph

    return root(charge, 0.0, 7.0)


def first_order(half_life, time):
    left, steps = 1.0, 100_000
    for _ in range(steps):
        left -= left * log(2) / half_life * time / steps
    return left


def vapour_pressure(heat, boiling, kelvin):
    pressure, steps = 1.0, 20_000
    for step in range(steps):
        at = boiling + (kelvin - boiling) * (step + 0.5) / steps
        pressure += pressure * heat * 1000 / (8.314463 * at**2) * (kelvin - boiling) / steps
    return pressure


def freezing_point(ions, molar_mass, grams, kilograms):
    particles = sum(grams / molar_mass for _ in range(ions))
    return particles / kilograms * 1.86


def equilibrium_constant(enthalpy, entropy, kelvin):
    return exp(entropy / 8.314463) * exp(-enthalpy * 1000 / (8.314463 * kelvin))


def electrolysis(charge, molar_mass, ampere, minutes):
    electrons = ampere * minutes * 60 / 1.602177e-19
    return electrons / charge / 6.022141e23 * molar_mass


def selection(q, s):
    adults = {"AA": (1 - q) ** 2, "Aa": 2 * q * (1 - q), "aa": q**2 * (1 - s)}
    return (adults["aa"] + adults["Aa"] / 2) / sum(adults.values())


def drift(size, generations):
    left = 1.0
    for _ in range(generations):
        left -= left / (2 * size)
    return left


def noncompetitive_inhibition(km, substrate, inhibitor, ki):
    forms = {"E": 1.0, "ES": substrate / km}
    with_inhibitor = {name: amount * inhibitor / ki for name, amount in forms.items()}
    return forms["ES"] / (sum(forms.values()) + sum(with_inhibitor.values()))


def logistic_growth(start, capacity, rate, time):
    size, steps = float(start), 50_000
    for _ in range(steps):
        slope = rate * size * (1 - size / capacity)
        middle = size + slope * time / steps / 2
        size += rate * middle * (1 - middle / capacity) * time / steps
    return size


def amplification(copies, cycles, efficiency):
    for _ in range(cycles):
        copies += copies * efficiency
    return copies


def ion_potential(charge, outside, inside, celsius):
    thermal = 8.617333e-2 * (celsius + 273.15)
    return root(lambda potential: outside - inside * exp(charge * potential / thermal), -400.0, 400.0)


def number(option):
    mantissa, power = re.match(r"\$?(-?[0-9.]+)(?: \\times 10\^\{(-?\d+)\})?", option).groups()
    return float(mantissa) * 10 ** int(power or 0)


def check(question):
    family = question.parameters.get("family", question.id.removeprefix("builtin-gpqa-"))
    values = {name: value for name, value in question.parameters.items() if name != "family"}
    answer = globals()[family.replace("-", "_")](**values)
    assert number(question.correct) == pytest.approx(answer, rel=6e-3), question
    for option in question.incorrect:
        assert number(option) != pytest.approx(answer, rel=0.01), question
    assert len({question.correct, *question.incorrect}) == 4


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_right_option_is_right(name):
    check(QUESTIONS[name])


@pytest.mark.parametrize("family", SCIENCE, ids=lambda family: family.__name__.strip("_"))
def test_questions_drawn_without_end_are_right_too(family):
    generator = random.Random(family.__name__)
    prompts = set()
    for _ in range(6):
        question = draw_question(family, generator)
        check(question)
        prompts.add(question.prompt)
    assert len(prompts) > 3


def test_options_differ_by_more_than_two_percent_as_shown():
    families = [family for family in SCIENCE if family.__name__ in ("_selection", "_noncompetitive_inhibition")]
    generator = random.Random(0)
    for _ in range(3000):
        question = draw_question(generator.choice(families), generator)
        right = number(question.correct)
        for option in question.incorrect:
            assert abs(number(option) - right) > 0.02 * max(abs(number(option)), abs(right)), question


def test_every_domain_is_there():
    domains = [question.domain for question in QUESTIONS.values()]
    assert {domain: domains.count(domain) for domain in set(domains)} == {"Physics": 20, "Chemistry": 20, "Biology": 20}
    assert len({question.prompt for question in QUESTIONS.values()}) == len(QUESTIONS) == 60


def test_the_generated_splits_are_disjoint_and_never_run_out():
    train, test = (get_task("gpqa").load("generated", split) for split in ("train", "test"))
    assert len(train.problems) >= 1_000_000
    prompts = [{problem.prompt for problem in dataset.problems[:300]} for dataset in (train, test)]
    assert not prompts[0] & prompts[1]
    assert min(map(len, prompts)) > 280
    letters = [problem.answer for problem in train.problems[:800]]
    assert all(150 < letters.count(letter) < 250 for letter in "ABCD")
