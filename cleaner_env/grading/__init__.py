"""Graders: ``(response, gold) -> Grade``, with nothing guessed.

All of them look at the response without its thinking. `grade_integer` and `grade_choice` take the answer from the last
box, else from an ``Answer:`` line; `grade_code` runs the last closed Python block against tests in a sandbox.

Example:
    >>> grade_integer(r"So the count is \\boxed{016}.", "16")
    Grade(verdict='correct', extracted='16')
"""

from cleaner_env.grading.choice import grade_choice
from cleaner_env.grading.code import CodeTest, CodeTests, grade_code
from cleaner_env.grading.integer import grade_integer
from cleaner_env.grading.verdict import Grade, Verdict

__all__ = ["CodeTest", "CodeTests", "Grade", "Verdict", "grade_choice", "grade_code", "grade_integer"]
