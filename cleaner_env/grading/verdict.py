"""The outcome of grading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Grade", "Verdict"]

Verdict: TypeAlias = Literal["correct", "incorrect", "no_answer", "infrastructure_error"]
"""``no_answer``: nothing in the response has the form of an answer. ``infrastructure_error``: could not be graded; it is
retried and reported, and never becomes a reward."""


@dataclass(frozen=True)
class Grade:
    """A verdict and the answer it is about.

    Attributes:
        verdict: See `Verdict`.
        extracted: The answer found in the response, ``None`` where there is none.
    """

    verdict: Verdict
    extracted: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the verdict is ``"correct"``."""
        return self.verdict == "correct"
