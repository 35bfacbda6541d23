"""Biology questions. Mistakes: a condition left out, linkage ignored, the wrong kind of inhibition or population size."""

from __future__ import annotations

from math import exp, log
from typing import Final

from cleaner_env.tasks.builtin.question import Question, computed

__all__ = ["questions"]

_THERMAL_MV: Final = 8.314462618 * 310.15 / 96485.33212 * 1000  # RT/F at 37 degrees Celsius


def questions() -> list[Question]:
    """Returns the biology questions."""
    return [
        _healthy_parents(),
        _linked_cross(),
        _interference(),
        _competitive_inhibition(),
        _lethal_recessive(),
        _resting_potential(),
        _single_infection(),
        _unequal_sexes(),
    ]


def _healthy_parents() -> Question:
    q = 0.2
    return computed(
        "healthy-parents",
        "Biology",
        "In a population in Hardy-Weinberg equilibrium, 4 % of the people have a fully penetrant autosomal recessive "
        "trait. Two people without the trait, picked at random, have a child. What is the probability that it has the "
        "trait?",
        "",
        (2 * q / (1 + q)) ** 2 / 4,
        (2 * q * (1 - q)) ** 2 / 4,
        q**2,
        2 * q / (1 + q) / 4,
    )


def _linked_cross() -> Question:
    r = 0.16
    return computed(
        "linked-cross",
        "Biology",
        "Two loci recombine with a frequency of 16 % in both sexes. Plants AB/ab (A and B dominant, in coupling) are "
        "crossed with each other. Which fraction of the offspring shows both recessive phenotypes?",
        "",
        ((1 - r) / 2) ** 2,
        1 / 16,
        (r / 2) ** 2,
        (1 - r) / 2,
    )


def _interference() -> Question:
    first, second, observed = 0.14, 0.22, 0.011
    return computed(
        "interference",
        "Biology",
        "Loci A, B and C lie on one chromosome in this order. Recombination frequencies are 14.0 % between A and B and "
        "22.0 % between B and C, and 1.10 % of the offspring of a testcross are double recombinants. What is the "
        "interference?",
        "",
        1 - observed / (first * second),
        observed / (first * second),
        first * second - observed,
        1 - observed / (first + second),
    )


def _competitive_inhibition() -> Question:
    substrate, km, ratio = 3.0, 2.0, 4.5 / 1.5
    return computed(
        "competitive-inhibition",
        "Biology",
        "An enzyme with Km = 2.0 mM works at 3.0 mM substrate and with 4.5 mM of a purely competitive inhibitor whose Ki "
        "is 1.5 mM. Which fraction of Vmax is the initial rate?",
        "",
        substrate / (km * (1 + ratio) + substrate),
        substrate / (km + substrate) / (1 + ratio),
        substrate / (km + substrate * (1 + ratio)),
        substrate / (km + substrate),
    )


def _lethal_recessive() -> Question:
    q, generations = 0.30, 12
    return computed(
        "lethal-recessive",
        "Biology",
        "A recessive allele is lethal before reproduction when homozygous and has no effect otherwise. Its frequency "
        "among the gametes that form a very large, randomly mating population is 0.30. What is its frequency 12 "
        "generations later?",
        "",
        q / (1 + generations * q),
        q * (1 - q) ** generations,
        q * (1 - q**2) ** generations,
        q / (1 + generations * q**2),
    )


def _resting_potential() -> Question:
    outside, inside, sodium = (4.0, 145.0), (140.0, 12.0), 0.040

    def potential(permeability: float) -> float:
        return _THERMAL_MV * log((outside[0] + permeability * outside[1]) / (inside[0] + permeability * inside[1]))

    return computed(
        "resting-potential",
        "Biology",
        "A membrane at 37 degrees Celsius is permeable to K(+) and, 0.040 times as much, to Na(+). Outside there are 4.0 "
        "mM K(+) and 145 mM Na(+), inside 140 mM K(+) and 12 mM Na(+). What is the membrane potential (inside minus "
        "outside) by the Goldman equation?",
        "mV",
        potential(sodium),
        potential(0),
        -potential(sodium),
        potential(1),
    )


def _single_infection() -> Question:
    mean = 1.8
    return computed(
        "single-infection",
        "Biology",
        "Bacteria are mixed with phages at a multiplicity of infection of 1.8, and every phage infects one bacterium at "
        "random. Among the bacteria that are infected, which fraction is infected by exactly one phage?",
        "",
        mean * exp(-mean) / (1 - exp(-mean)),
        mean * exp(-mean),
        1 - exp(-mean),
        exp(-mean) / (1 - exp(-mean)),
    )


def _unequal_sexes() -> Question:
    males, females, generations = 5, 45, 20

    def left(size: float) -> float:
        return (1 - 1 / (2 * size)) ** generations

    effective = 4 * males * females / (males + females)
    return computed(
        "unequal-sexes",
        "Biology",
        "In each generation of a closed, randomly mating population, 5 males and 45 females breed. Which fraction of the "
        "heterozygosity at a neutral locus is expected to be left after 20 generations? Use the effective population "
        "size.",
        "",
        left(effective),
        left(males + females),
        left(effective / 2),
        left(males),
    )
