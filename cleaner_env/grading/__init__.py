"""Graders: ``(response, gold) -> Grade``, with nothing guessed.

All of them look at the response without its thinking. `grade_integer`, `grade_expression` and `grade_choice` take the
answer from the last box, else from an ``Answer:`` line; `grade_code` runs the last closed Python block against tests in a
sandbox.

Example:
    >>> grade_integer(r"So the count is \\boxed{016}.", "16")
    Grade(verdict='correct', extracted='16')
"""

from cleaner_env.grading.choice import grade_choice
from cleaner_env.grading.code import Judgement, grade_code, judge_code
from cleaner_env.grading.code_tests import CodeTest, CodeTests
from cleaner_env.grading.expression import grade_expression
from cleaner_env.grading.integer import grade_integer
from cleaner_env.grading.judge import Judge
from cleaner_env.grading.verdict import Grade, Verdict

__all__ = [
    "CodeTest",
    "CodeTests",
    "Grade",
    "Judge",
    "Judgement",
    "Verdict",
    "grade_choice",
    "grade_code",
    "grade_expression",
    "grade_integer",
    "judge_code",
]
