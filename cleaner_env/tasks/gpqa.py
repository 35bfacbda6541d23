"""GPQA: graduate-level multiple choice with four options."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError
from cleaner_env.grading.choice import grade_choice
from cleaner_env.grading.verdict import Grade
from cleaner_env.tasks.base import Dataset, Problem, Task
from cleaner_env.tasks.loading import Row, is_path, load_file, make_dataset, refuse_split, unknown_dataset

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["GPQATask", "option_order"]

_SYSTEM: Final = "You answer questions of graduate-level science. Reason step by step."


def option_order(seed: int, problem_id: str, count: int = 4) -> tuple[int, ...]:
    """Returns the order in which the options of a problem are shown, a pure function of the arguments.

    Options are sorted by a hash of seed, problem and place, so that every order is equally likely over problems.

    Returns:
        For each letter in turn the place of its option in the file, 0 being the right one.

    Example:
        >>> option_order(0, "q-1") == option_order(0, "q-1")
        True
        >>> sorted(option_order(0, "q-1"))
        [0, 1, 2, 3]
    """

    def key(place: int) -> bytes:
        return hashlib.sha256(f"{seed}\n{problem_id}\n{place}".encode()).digest()

    return tuple(sorted(range(count), key=key))


class GPQATask(Task):
    r"""Questions with lettered options, answered by one letter in ``\boxed{}``.

    The data set ``builtin`` was written for this project. A file has the official columns (``Question``,
    ``Correct Answer``, ``Incorrect Answer 1`` to ``3``), or ``question``, ``options`` (a list) and ``answer`` (a letter,
    or the text of an option).

    Args:
        seed: What the order of the options depends on besides the problem's id.

    Raises:
        ConfigError: ``seed`` is no integer.

    Example:
        >>> problem = GPQATask().load("builtin").problems[0]
        >>> problem.metadata["options"]["ABCD".index(problem.answer)]
        '209 keV'
    """

    name = "gpqa"

    def __init__(self, seed: int = 0) -> None:
        if type(seed) is not int:
            raise ConfigError(f"seed must be an integer, got {seed!r}")
        self.seed = seed

    def load(self, dataset: str = "builtin", split: str | None = None) -> Dataset:
        refuse_split(dataset, split)
        if dataset == "builtin":
            from cleaner_env.tasks.builtin.gpqa import questions

            made = [self._problem(q.id, q.prompt, (q.correct, *q.incorrect), q.domain) for q in questions()]
            return make_dataset(dataset, made)
        if is_path(dataset):
            return load_file(dataset, self._from_row)
        raise unknown_dataset(self.name, dataset, ["builtin"])

    def messages(self, problem: Problem) -> Conversation:
        letters = ascii_uppercase[: len(problem.metadata["options"])]
        instruction = f"Put the letter of the right option, {', '.join(letters[:-1])} or {letters[-1]}, in \\boxed{{}}."
        return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{problem.prompt}\n\n{instruction}"}

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox | None = None) -> Grade:
        del sandbox
        return grade_choice(turn, problem.answer, ascii_uppercase[: len(problem.metadata["options"])])

    def _from_row(self, row: Row, identifier: str) -> Problem:
        question = row.text("the question", "question", "problem", "prompt").strip()
        options = _official_options(row) if row.has("correct answer") else _listed_options(row)
        if len({option.casefold() for option in options}) < len(options):
            raise row.error(f"two options are the same: {'; '.join(options)[:200]}")
        domain = row.values.get("High-level domain") or row.values.get("domain")
        return self._problem(identifier, question, options, domain if isinstance(domain, str) else None)

    def _problem(self, identifier: str, question: str, options: Sequence[str], domain: str | None) -> Problem:
        """Puts the options, the right one first, into the order in which they are shown."""
        order = option_order(self.seed, identifier, len(options))
        shown = [options[place] for place in order]
        lines = [f"{letter}) {option}" for letter, option in zip(ascii_uppercase, shown, strict=False)]
        metadata = {"options": shown, "option_order": order, "domain": domain}
        return Problem(identifier, "\n".join([question, "", *lines]), ascii_uppercase[order.index(0)], metadata)


def _official_options(row: Row) -> list[str]:
    names = ("correct answer", "incorrect answer 1", "incorrect answer 2", "incorrect answer 3")
    return [row.text(f"the {name}", name).strip() for name in names]


def _listed_options(row: Row) -> list[str]:
    """Returns the options of a row that lists them, the right one first."""
    options = row.get("the options (or 'Correct Answer', 'Incorrect Answer 1' ...)", "options", "choices")
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise row.error(f"options must be a list of texts, got {str(options)[:80]!r}")
    if not 2 <= len(options) <= len(ascii_uppercase):
        raise row.error(f"a question needs 2 to {len(ascii_uppercase)} options, got {len(options)}")
    options = [option.strip() for option in options]
    answer = row.text("the answer", "answer", "answer_key", "correct_option", "label").strip()
    letters = ascii_uppercase[: len(options)]
    place = letters.find(answer.upper()) if len(answer) == 1 else -1
    if place < 0 and answer in options:
        place = options.index(answer)
    if place < 0:
        raise row.error(f"the answer must be one of the letters {letters} or the text of an option, got {answer[:80]!r}")
    return [options[place], *options[:place], *options[place + 1 :]]
