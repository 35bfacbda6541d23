"""The built-in graduate-level multiple-choice questions."""

from __future__ import annotations

from cleaner_env.tasks.builtin import biology, chemistry, physics
from cleaner_env.tasks.builtin.question import Question

__all__ = ["questions"]


def questions() -> list[Question]:
    """Returns the built-in questions, always the same."""
    return physics.questions() + chemistry.questions() + biology.questions()
