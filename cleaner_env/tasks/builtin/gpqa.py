"""The built-in graduate-level multiple-choice questions: some that stand alone, and two of each family."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from cleaner_env.tasks.builtin import biology, chemistry, physics
from cleaner_env.tasks.builtin.question import Question
from cleaner_env.tasks.builtin.science import SCIENCE, draw_question

__all__ = ["draw", "questions"]

_SEED: Final = 20261129
_PER_FAMILY: Final = 2


def questions() -> list[Question]:
    """Returns the built-in questions, always the same."""
    made = physics.questions() + chemistry.questions() + biology.questions()
    for family in SCIENCE:
        generator = random.Random(f"{_SEED} {family.__name__}")
        prompts: set[str] = set()
        while len(prompts) < _PER_FAMILY:
            question = draw_question(family, generator)
            if question.prompt not in prompts:
                prompts.add(question.prompt)
                made.append(replace(question, id=f"{question.id}-{len(prompts)}"))
    return made


def draw(generator: random.Random) -> Question:
    """Draws a question of one of the families."""
    return draw_question(generator.choice(SCIENCE), generator)
