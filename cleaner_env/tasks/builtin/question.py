"""A multiple-choice question whose options are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Question", "computed", "shown"]


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: Unique among the built-in questions.
        domain: Physics, Chemistry or Biology.
        prompt: What is asked.
        correct: The right option.
        incorrect: Three options that common mistakes lead to.
        parameters: Of a family's question, its name as ``family`` and what was drawn.
    """

    id: str
    domain: str
    prompt: str
    correct: str
    incorrect: tuple[str, str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)


def computed(name: str, domain: str, prompt: str, unit: str, correct: float, *mistaken: float, digits: int = 3) -> Question:
    """Makes a question of values in ``unit``, each shown with ``digits`` significant digits."""
    first, second, third = (shown(value, unit, digits) for value in mistaken)
    return Question(f"builtin-gpqa-{name}", domain, prompt, shown(correct, unit, digits), (first, second, third))


def shown(value: float, unit: str, digits: int = 3) -> str:
    r"""Writes a value with its unit.

    Example:
        >>> shown(0.03141, "m"), shown(-314.1, "kJ/mol"), shown(2.5e-7, "")
        ('0.0314 m', '-314 kJ/mol', '$2.50 \\times 10^{-7}$')
    """
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if -3 <= int(exponent) < max(digits, 4):
        number = f"{float(f'{mantissa}e{exponent}'):.{max(0, digits - 1 - int(exponent))}f}"
    else:
        number = f"${mantissa} \\times 10^{{{int(exponent)}}}$"
    return f"{number} {unit}".rstrip()
