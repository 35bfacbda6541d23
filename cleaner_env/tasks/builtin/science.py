"""Families of science questions: the values are drawn, the options computed, as common mistakes would have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import exp, log, log10, pi, sqrt
from typing import Any, Final, TypeAlias

from cleaner_env.tasks.builtin.question import Question, computed

__all__ = ["SCIENCE", "draw_question"]

ScienceFamily: TypeAlias = Callable[[random.Random], "Question | None"]

_H: Final = 6.62607015e-34  # J s
_C: Final = 299_792_458.0  # m/s
_E: Final = 1.602176634e-19  # C
_ELECTRON_KG: Final = 9.1093837e-31
_RYDBERG: Final = 1.0973731568e7  # 1/m
_GAS: Final = 8.314462618  # J/(mol K)
_FARADAY: Final = 96485.33212  # C/mol


def draw_question(family: ScienceFamily, generator: random.Random) -> Question:
    """Draws a question whose right option differs, as shown, from all others by more than two percent."""
    while True:
        question = family(generator)
        if question is not None:
            return question


def _made(
    family: str, domain: str, prompt: str, unit: str, parameters: dict[str, Any], correct: float, *mistaken: float
) -> Question | None:
    question = computed(family, domain, prompt, unit, correct, *mistaken)
    right, *wrong = (float(f"{value:.2e}") for value in (correct, *mistaken))  # To the three digits that are shown.
    close = any(abs(value - right) <= 0.02 * max(abs(value), abs(right)) for value in wrong)
    if close or len({question.correct, *question.incorrect}) < 4:
        return None
    return replace(question, parameters={"family": family, **parameters})


def _accelerated_electron(generator: random.Random) -> Question | None:
    volts = generator.randrange(50, 1000, 5)
    momentum = sqrt(2 * _ELECTRON_KG * _E * volts)
    return _made(
        "accelerated-electron",
        "Physics",
        f"An electron is accelerated from rest through a potential difference of {volts} V. "
        "What is its de Broglie wavelength? Relativistic corrections may be left aside.",
        "nm",
        {"volts": volts},
        1e9 * _H / momentum,
        1e9 * _H / (momentum / sqrt(2)),
        1e9 * _H * _C / (_E * volts),
        1e9 * _H / (2 * pi * momentum),
    )


def _hydrogen_like_line(generator: random.Random) -> Question | None:
    charge = generator.randrange(2, 7)
    ion = {2: "He(+)", 3: "Li(2+)", 4: "Be(3+)", 5: "B(4+)", 6: "C(5+)"}[charge]
    low = generator.randrange(1, 5)
    high = low + generator.randrange(1, 5)
    term = 1 / low**2 - 1 / high**2
    return _made(
        "hydrogen-like-line",
        "Physics",
        f"What is the wavelength of the photon that the one-electron ion {ion} emits when it falls from the "
        f"level n = {high} "
        f"to the level n = {low}? Take the nucleus as infinitely heavy.",
        "nm",
        {"charge": charge, "low": low, "high": high},
        1e9 / (_RYDBERG * charge**2 * term),
        1e9 / (_RYDBERG * term),
        1e9 / (_RYDBERG * charge * term),
        1e9 / (_RYDBERG * charge**2 * (1 / low - 1 / high) ** 2),
    )


def _star_radius(generator: random.Random) -> Question | None:
    luminosity, kelvin = generator.randrange(20, 900, 10), generator.randrange(3000, 20000, 250)
    ratio = kelvin / 5772
    return _made(
        "star-radius",
        "Physics",
        f"A star shines like a black body with {luminosity} times the luminosity of the Sun and a surface temperature of "
        f"{kelvin} K; that of the Sun is 5772 K. What is its radius in units of the radius of the Sun?",
        "",
        {"luminosity": luminosity, "kelvin": kelvin},
        sqrt(luminosity) / ratio**2,
        sqrt(luminosity) / ratio,
        luminosity / ratio**4,
        sqrt(luminosity) * ratio**2,
    )


def _muon_survival(generator: random.Random) -> Question | None:
    beta, km = generator.randrange(950, 999) / 1000, generator.randrange(10, 60) / 10
    gamma, mean = 1 / sqrt(1 - beta**2), _C * 2.197e-6 / 1000
    return _made(
        "muon-survival",
        "Physics",
        "Muons have a mean life of 2.197 microseconds at rest. Which fraction of the muons that move with "
        f"{beta} times the "
        f"speed of light is left after {km} km?",
        "",
        {"beta": beta, "km": km},
        exp(-km / (gamma * beta * mean)),
        exp(-km / (beta * mean)),
        2 ** (-km / (gamma * beta * mean)),
        exp(-km / (gamma**2 * beta * mean)),
    )


def _series_circuit(generator: random.Random) -> Question | None:
    ohm, millihenry = generator.randrange(20, 200, 5), generator.randrange(20, 300, 10)
    microfarad, hertz = generator.randrange(10, 100, 5), generator.randrange(40, 130, 10)
    omega = 2 * pi * hertz
    inductive, capacitive = omega * millihenry / 1000, 1e6 / (omega * microfarad)
    return _made(
        "series-circuit",
        "Physics",
        f"A resistor of {ohm} ohm, a coil of {millihenry} mH and a capacitor of {microfarad} microfarad are "
        "in series with a "
        f"source of {hertz} Hz. What is the magnitude of the impedance?",
        "ohm",
        {"ohm": ohm, "millihenry": millihenry, "microfarad": microfarad, "hertz": hertz},
        sqrt(ohm**2 + (inductive - capacitive) ** 2),
        sqrt(ohm**2 + (inductive + capacitive) ** 2),
        ohm + abs(inductive - capacitive),
        sqrt(ohm**2 + (inductive / (2 * pi) - capacitive * 2 * pi) ** 2),
    )


def _otto_cycle(generator: random.Random) -> Question | None:
    ratio, gamma = generator.randrange(60, 140, 2) / 10, generator.choice((1.29, 1.33, 1.40, 1.67))
    return _made(
        "otto-cycle",
        "Physics",
        f"An ideal Otto cycle has a compression ratio of {ratio} and works with a perfect gas whose heat "
        "capacities have the "
        f"ratio {gamma}. What is its thermal efficiency?",
        "",
        {"ratio": ratio, "gamma": gamma},
        1 - ratio ** (1 - gamma),
        1 - 1 / ratio,
        1 - ratio**-gamma,
        ratio ** (1 - gamma),
    )


def _weak_acid(generator: random.Random) -> Question | None:
    pka, molar = generator.randrange(280, 500, 4) / 100, generator.choice((0.010, 0.020, 0.050, 0.10, 0.20))
    constant = 10**-pka
    hydrogen = (sqrt(constant**2 + 4 * constant * molar) - constant) / 2
    return _made(
        "weak-acid",
        "Chemistry",
        f"What is the pH of a {molar:g} M solution of a monoprotic acid with pKa = {pka:.2f}? Take activities as "
        "concentrations.",
        "",
        {"pka": pka, "molar": molar},
        -log10(hydrogen),
        -log10(molar),
        pka + log10(molar) / 2,
        pka,
    )


def _first_order(generator: random.Random) -> Question | None:
    half_life, time = generator.randrange(20, 200, 3), generator.randrange(30, 400, 7)
    return _made(
        "first-order",
        "Chemistry",
        f"A substance decomposes by a reaction of first order with a half-life of {half_life} min. "
        f"Which fraction of it is left after {time} min?",
        "",
        {"half_life": half_life, "time": time},
        0.5 ** (time / half_life),
        exp(-time / half_life),
        1 - 0.5 ** (time / half_life),
        1 / (1 + time / half_life),
    )


def _vapour_pressure(generator: random.Random) -> Question | None:
    heat, boiling = generator.randrange(250, 480, 5) / 10, generator.randrange(330, 420, 2)
    kelvin = boiling - generator.randrange(15, 60)
    power = heat * 1000 / _GAS * (1 / kelvin - 1 / boiling)
    return _made(
        "vapour-pressure",
        "Chemistry",
        f"A liquid boils at {boiling} K under 1.00 bar; its enthalpy of vaporisation is {heat} kJ/mol and "
        "does not depend on "
        f"the temperature. What is its vapour pressure at {kelvin} K?",
        "bar",
        {"heat": heat, "boiling": boiling, "kelvin": kelvin},
        exp(-power),
        exp(power),
        exp(-power / log(10)),
        kelvin / boiling,
    )


def _freezing_point(generator: random.Random) -> Question | None:
    salt, ions, molar_mass = generator.choice(
        (("NaCl", 2, 58.44), ("CaCl2", 3, 110.98), ("KBr", 2, 119.00), ("Na2SO4", 3, 142.04), ("AlCl3", 4, 133.34))
    )
    grams, kilograms = generator.randrange(10, 90, 2), generator.randrange(4, 20) / 10
    molality = grams / molar_mass / kilograms
    return _made(
        "freezing-point",
        "Chemistry",
        f"{grams} g of {salt} (molar mass {molar_mass} g/mol) is dissolved in {kilograms} kg of water, and dissociates "
        "completely into its ions, which behave ideally. By how much is the freezing point lowered? "
        "The cryoscopic constant of water is 1.86 K kg/mol.",
        "K",
        {"ions": ions, "molar_mass": molar_mass, "grams": grams, "kilograms": kilograms},
        ions * 1.86 * molality,
        1.86 * molality,
        (ions + 1) * 1.86 * molality,
        ions * 1.86 * molality * kilograms**2,
    )


def _equilibrium_constant(generator: random.Random) -> Question | None:
    enthalpy, entropy = generator.randrange(-40, 41), generator.randrange(-90, 91, 3)
    kelvin = generator.randrange(300, 600, 10)
    minus, plus = (enthalpy * 1000 + sign * kelvin * entropy for sign in (-1, 1))
    return _made(
        "equilibrium-constant",
        "Chemistry",
        f"A reaction has a standard enthalpy of {enthalpy} kJ/mol and a standard entropy of {entropy} J/(mol "
        "K), neither of "
        f"which depends on the temperature. What is its equilibrium constant at {kelvin} K?",
        "",
        {"enthalpy": enthalpy, "entropy": entropy, "kelvin": kelvin},
        exp(-minus / (_GAS * kelvin)),
        exp(minus / (_GAS * kelvin)),
        exp(-plus / (_GAS * kelvin)),
        exp(-minus / (_GAS * kelvin) / log(10)),
    )


def _electrolysis(generator: random.Random) -> Question | None:
    metal, charge, molar_mass = generator.choice(
        (("copper from Cu(2+)", 2, 63.546), ("gold from Au(3+)", 3, 196.97), ("nickel from Ni(2+)", 2, 58.693),
         ("chromium from Cr(3+)", 3, 51.996), ("tin from Sn(4+)", 4, 118.71))
    )  # fmt: skip
    ampere, minutes = generator.randrange(5, 60) / 10, generator.randrange(10, 180, 5)
    grams = ampere * minutes * 60 * molar_mass / _FARADAY
    return _made(
        "electrolysis",
        "Chemistry",
        f"What mass of {metal} does a current of {ampere} A deposit in {minutes} min, with no other reaction "
        "at the cathode? "
        f"The molar mass is {molar_mass} g/mol.",
        "g",
        {"charge": charge, "molar_mass": molar_mass, "ampere": ampere, "minutes": minutes},
        grams / charge,
        grams,
        grams * charge,
        grams / charge / 60,
    )


def _selection(generator: random.Random) -> Question | None:
    q, s = generator.randrange(10, 60) / 100, generator.randrange(10, 95, 5) / 100
    return _made(
        "selection",
        "Biology",
        f"In a large, randomly mating population a recessive allele has the frequency {q}. Homozygotes for it "
        "have a fitness "
        f"of {1 - s:.2f} relative to all others. What is its frequency in the next generation?",
        "",
        {"q": q, "s": s},
        q * (1 - s * q) / (1 - s * q**2),
        q * (1 - s * q),
        q * (1 - s) / (1 - s * q),
        q * (1 - s * q**2),
    )


def _drift(generator: random.Random) -> Question | None:
    size, generations = generator.randrange(10, 120, 2), generator.randrange(10, 90)
    return _made(
        "drift",
        "Biology",
        f"An ideal population has {size} diploid members in every generation. Which fraction of its expected "
        "heterozygosity "
        f"is left after {generations} generations of genetic drift alone?",
        "",
        {"size": size, "generations": generations},
        (1 - 1 / (2 * size)) ** generations,
        (1 - 1 / size) ** generations,
        1 - (1 - 1 / (2 * size)) ** generations,
        (1 - 1 / (4 * size)) ** generations,
    )


def _noncompetitive_inhibition(generator: random.Random) -> Question | None:
    km, substrate = generator.randrange(10, 90) / 10, generator.randrange(10, 200) / 10
    inhibitor, ki = generator.randrange(10, 90) / 10, generator.randrange(10, 60) / 10
    factor = 1 + inhibitor / ki
    return _made(
        "noncompetitive-inhibition",
        "Biology",
        f"An enzyme follows Michaelis-Menten kinetics with KM = {km} mM. A purely noncompetitive inhibitor "
        f"with KI = {ki} mM is "
        f"present at {inhibitor} mM, the substrate at {substrate} mM. What is the rate as a fraction of the maximal rate "
        "without inhibitor?",
        "",
        {"km": km, "substrate": substrate, "inhibitor": inhibitor, "ki": ki},
        substrate / (km + substrate) / factor,
        substrate / (km * factor + substrate),
        substrate / (km + substrate * factor),
        substrate / (km + substrate),
    )


def _logistic_growth(generator: random.Random) -> Question | None:
    start, capacity = generator.randrange(20, 300, 10), generator.randrange(500, 3000, 50)
    rate, time = generator.randrange(10, 80) / 100, generator.randrange(2, 9)
    growth = exp(rate * time)
    return _made(
        "logistic-growth",
        "Biology",
        f"A population grows logistically from {start} individuals, with an intrinsic growth rate of {rate} per year and a "
        f"carrying capacity of {capacity}. How large is it after {time} years?",
        "",
        {"start": start, "capacity": capacity, "rate": rate, "time": time},
        capacity / (1 + (capacity - start) / start / growth),
        start * growth,
        capacity - (capacity - start) / growth,
        start * (1 + rate) ** time,
    )


def _amplification(generator: random.Random) -> Question | None:
    copies, cycles = generator.randrange(10, 500, 10), generator.randrange(15, 35)
    efficiency = generator.randrange(70, 98) / 100
    return _made(
        "amplification",
        "Biology",
        f"A polymerase chain reaction starts from {copies} double-stranded templates. In each cycle, "
        f"{100 * efficiency:.0f} % "
        f"of the molecules present are copied. How many molecules are there after {cycles} cycles?",
        "",
        {"copies": copies, "cycles": cycles, "efficiency": efficiency},
        copies * (1 + efficiency) ** cycles,
        copies * (2 * efficiency) ** cycles,
        copies * 2**cycles * efficiency,
        copies * 2**cycles,
    )


def _ion_potential(generator: random.Random) -> Question | None:
    ion, charge = generator.choice((("K(+)", 1), ("Na(+)", 1), ("Ca(2+)", 2), ("Mg(2+)", 2), ("Cl(-)", -1)))
    outside, inside = generator.randrange(1, 150), generator.randrange(1, 150)
    celsius = generator.choice((20, 25, 30, 37))
    step = 1000 * _GAS * (celsius + 273.15) / _FARADAY
    value = step / charge * log(outside / inside)
    return _made(
        "ion-potential",
        "Biology",
        f"A membrane is permeable to {ion} alone, whose concentration is {outside} mM outside and {inside} mM inside. "
        f"What is the potential inside, relative to outside, in equilibrium at {celsius} degrees Celsius?",
        "mV",
        {"charge": charge, "outside": outside, "inside": inside, "celsius": celsius},
        value,
        -value,
        value * (2 if abs(charge) == 1 else 4),
        value / log(10),
    )


SCIENCE: Final[tuple[ScienceFamily, ...]] = (
    _accelerated_electron,
    _hydrogen_like_line,
    _star_radius,
    _muon_survival,
    _series_circuit,
    _otto_cycle,
    _weak_acid,
    _first_order,
    _vapour_pressure,
    _freezing_point,
    _equilibrium_constant,
    _electrolysis,
    _selection,
    _drift,
    _noncompetitive_inhibition,
    _logistic_growth,
    _amplification,
    _ion_potential,
)
"""Six families each of physics, chemistry and biology."""
