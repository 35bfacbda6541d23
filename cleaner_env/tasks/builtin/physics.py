"""Physics questions. Mistakes: a wrong formula of the same dimension, a forgotten factor, a classical limit."""

from __future__ import annotations

from math import cos, exp, radians, sqrt
from typing import Final

from cleaner_env.tasks.builtin.question import Question, computed

__all__ = ["questions"]

_H: Final = 6.62607015e-34  # J s
_C: Final = 299_792_458.0  # m/s
_ELECTRON_KG: Final = 9.1093837e-31
_ELECTRON_MEV: Final = 0.51099895
_BOLTZMANN_EV: Final = 8.617333e-5  # eV/K


def questions() -> list[Question]:
    """Returns the physics questions."""
    return [
        _scattered_photon(),
        _box_transition(),
        _electron_momentum(),
        _orbiting_clock(),
        _two_magnets(),
        _upper_level(),
        _oscillator_moment(),
        _work_from_two_bodies(),
    ]


def _scattered_photon() -> Question:
    energy, angle = 0.300, radians(75)
    ratio = energy / _ELECTRON_MEV
    return computed(
        "compton",
        "Physics",
        "A photon of energy 300 keV is scattered by a free electron at rest through an angle of 75 degrees. "
        "What is the energy of the scattered photon?",
        "keV",
        1000 * energy / (1 + ratio * (1 - cos(angle))),
        1000 * energy / (1 + ratio * (1 + cos(angle))),
        1000 * energy / (1 + 2 * ratio * (1 - cos(angle))),
        1000 * energy * (1 - cos(angle)) / (1 + ratio * (1 - cos(angle))),
    )


def _box_transition() -> Question:
    unit = _H**2 / (8 * _ELECTRON_KG * 1.2e-9**2)

    def wavelength_nm(energy: float) -> float:
        return _H * _C / energy * 1e9

    return computed(
        "box-transition",
        "Physics",
        "An electron is confined to a one-dimensional box of length 1.20 nm with impenetrable walls. "
        "What is the wavelength of the photon emitted when it falls from the state n = 4 to the state n = 2?",
        "nm",
        wavelength_nm(unit * (16 - 4)),
        wavelength_nm(unit * (4 - 2) ** 2),
        wavelength_nm(unit * (4 - 2)),
        wavelength_nm(unit * 16),
    )


def _electron_momentum() -> Question:
    kinetic = 1.50
    return computed(
        "electron-momentum",
        "Physics",
        "What is the momentum of an electron whose kinetic energy is 1.50 MeV?",
        "MeV/c",
        sqrt(kinetic**2 + 2 * kinetic * _ELECTRON_MEV),
        sqrt(2 * kinetic * _ELECTRON_MEV),
        sqrt(kinetic**2 - _ELECTRON_MEV**2),
        kinetic + _ELECTRON_MEV,
    )


def _orbiting_clock() -> Question:
    x = 1 / 6
    return computed(
        "orbiting-clock",
        "Physics",
        "A clock moves on a circular geodesic around a non-rotating black hole at a radial coordinate of 6 Schwarzschild "
        "radii. By which factor does it run slow, compared with a clock at rest far away (its proper time divided by "
        "the time far away)?",
        "",
        sqrt(1 - 1.5 * x),
        sqrt(1 - x),
        sqrt(1 - 3 * x),
        sqrt(1 - 0.5 * x),
    )


def _two_magnets() -> Question:
    half = radians(50) / 2
    return computed(
        "two-magnets",
        "Physics",
        "Spin-1/2 atoms with spin up along z enter a Stern-Gerlach magnet whose axis makes an angle of 50 degrees with "
        "z. Its upper beam alone enters a second magnet with its axis along z. Which fraction of the atoms that entered "
        "the first magnet leaves the second one with spin down along z?",
        "",
        cos(half) ** 2 * (1 - cos(half) ** 2),
        cos(2 * half) ** 2 * (1 - cos(2 * half) ** 2),
        1 - cos(half) ** 2,
        cos(half) ** 4,
    )


def _upper_level() -> Question:
    factor = exp(-0.030 / (_BOLTZMANN_EV * 400))
    return computed(
        "upper-level",
        "Physics",
        "An impurity has a non-degenerate ground level and, 30.0 meV above it, a level with threefold degeneracy. "
        "There are no other levels. Which fraction of the impurities is in the upper level at 400 K?",
        "",
        3 * factor / (1 + 3 * factor),
        factor / (1 + factor),
        factor / (1 + 3 * factor),
        factor / 3 / (1 + factor / 3),
    )


def _oscillator_moment() -> Question:
    square = 2 + 0.5
    return computed(
        "oscillator-moment",
        "Physics",
        "A one-dimensional quantum harmonic oscillator of mass m and angular frequency w is in its second excited state "
        "(n = 2). What is the expectation value of the fourth power of the position, in units of (hbar/(m w)) squared?",
        "",
        0.75 * (2 * 2**2 + 2 * 2 + 1),
        square**2,
        3 * square**2,
        0.75 * (2 * 1**2 + 2 * 1 + 1),
    )


def _work_from_two_bodies() -> Question:
    hot, cold, capacity = 500.0, 280.0, 2.00
    return computed(
        "two-bodies",
        "Physics",
        "Two identical bodies, each with a constant heat capacity of 2.00 kJ/K, start at 500 K and 280 K. A heat engine "
        "works between them until their temperatures are equal; nothing else exchanges heat. "
        "What is the largest amount of work that it can deliver?",
        "kJ",
        capacity * (hot + cold - 2 * sqrt(hot * cold)),
        capacity * (hot - cold) * (1 - cold / hot),
        capacity * (hot - cold) / 2 * (1 - cold / hot),
        capacity * (hot - sqrt(hot * cold)),
    )
