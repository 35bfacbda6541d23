"""Chemistry questions. Mistakes: a wrong sign or stoichiometric factor, a forgotten equilibrium, the wrong logarithm."""

from __future__ import annotations

from math import cos, log, log10, pi, sqrt
from typing import Final

from cleaner_env.tasks.builtin.question import Question, computed

__all__ = ["questions"]

_GAS: Final = 8.314462618  # J/(mol K)
_FARADAY: Final = 96485.33212  # C/mol


def questions() -> list[Question]:
    """Returns the chemistry questions."""
    return [
        _buffer(),
        _copper_zinc_cell(),
        _activation_energy(),
        _intermediate_peak(),
        _common_ion(),
        _stereoisomers(),
        _isotope_pattern(),
        _pi_gap(),
    ]


def _buffer() -> Question:
    acid, base, added, pka = 0.250 * 0.200, 0.250 * 0.300, 0.100 * 0.150, 4.76
    return computed(
        "buffer",
        "Chemistry",
        "To 250 mL of a solution that is 0.200 M in acetic acid (pKa = 4.76) and 0.300 M in sodium acetate, 100 mL of "
        "0.150 M HCl is added. What is the pH afterwards? Take activities as concentrations.",
        "",
        pka + log10((base - added) / (acid + added)),
        pka + log10((base + added) / (acid - added)),
        pka + log10(base / acid),
        pka - log10((base - added) / (acid + added)),
    )


def _copper_zinc_cell() -> Question:
    standard, quotient = 1.10, 0.50 / 2.0e-4
    step = _GAS * 298.15 / _FARADAY
    return computed(
        "copper-zinc",
        "Chemistry",
        "A galvanic cell at 298.15 K has a zinc electrode in 0.50 M Zn(2+) and a copper electrode in 0.00020 M Cu(2+). "
        "Its standard potential is 1.10 V. What is its potential? Take activities as concentrations.",
        "V",
        standard - step / 2 * log(quotient),
        standard + step / 2 * log(quotient),
        standard - step * log(quotient),
        standard - step / 2 * log10(quotient),
    )


def _activation_energy() -> Question:
    low, high, ratio = 298.15, 338.15, 45.0
    span = 1 / low - 1 / high
    return computed(
        "activation-energy",
        "Chemistry",
        "The rate constant of a reaction is 45.0 times as large at 65.0 degrees Celsius as at 25.0 degrees Celsius. "
        "What is its activation energy, by the Arrhenius equation?",
        "kJ/mol",
        _GAS * log(ratio) / span / 1000,
        _GAS * log10(ratio) / span / 1000,
        _GAS * log(ratio) / (1 / 25 - 1 / 65) / 1000,
        _GAS * log(ratio) * (high - low) / 1000,
    )


def _intermediate_peak() -> Question:
    first, second = 0.120, 0.030
    return computed(
        "intermediate-peak",
        "Chemistry",
        "A turns into B with the rate constant 0.120 per minute, and B into C with 0.030 per minute; both steps are of "
        "first order and irreversible, and there is only A at the start. After which time is the concentration of B "
        "largest?",
        "min",
        log(first / second) / (first - second),
        log(first / second) / (first + second),
        log(2) / first,
        log(2) / second,
    )


def _common_ion() -> Question:
    product, fluoride = 3.9e-11, 0.020
    return computed(
        "common-ion",
        "Chemistry",
        "The solubility product of CaF2 is 3.9e-11. What is the molar solubility of CaF2 in 0.020 M NaF? "
        "Take activities as concentrations and leave the basicity of fluoride aside.",
        "M",
        product / fluoride**2,
        product / fluoride,
        (product / 4) ** (1 / 3),
        sqrt(product),
    )


def _stereoisomers() -> Question:
    centres = 4
    return Question(
        "builtin-gpqa-stereoisomers",
        "Chemistry",
        "How many stereoisomers does 2,3,4,5-tetrahydroxyhexanedioic acid, HOOC-(CHOH)4-COOH, have in all, "
        "enantiomers counted apart and meso forms included?",
        str(2 ** (centres - 1) + 2 ** (centres // 2 - 1)),
        (str(2**centres), str(2 ** (centres - 1)), str(2**centres - 2 ** (centres // 2))),
    )


def _isotope_pattern() -> Question:
    bromine, chlorine = 0.4931 / 0.5069, 0.2424 / 0.7576
    return computed(
        "isotope-pattern",
        "Chemistry",
        "The abundances are 50.69 % for 79Br and 49.31 % for 81Br, and 75.76 % for 35Cl and 24.24 % for 37Cl. For a "
        "molecular ion with two bromine atoms and one chlorine atom, what is the intensity of the M+2 peak divided by "
        "that of the M peak? Leave the isotopes of other elements aside.",
        "",
        2 * bromine + chlorine,
        2 * bromine,
        bromine + chlorine,
        bromine**2 + 2 * bromine * chlorine,
    )


def _pi_gap() -> Question:
    def gap(atoms: int) -> float:
        return 4 * cos(atoms // 2 * pi / (atoms + 1))

    return computed(
        "pi-gap",
        "Chemistry",
        "In simple Hueckel theory, what is the energy difference between the highest occupied and the lowest unoccupied "
        "pi orbital of all-trans-1,3,5-hexatriene, in units of the absolute value of the resonance integral beta?",
        "",
        gap(6),
        gap(6) / 2,
        gap(4),
        2.0,
    )
