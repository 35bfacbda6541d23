"""GPQA: graduate-level multiple choice with four options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError
from cleaner_env.grading.choice import grade_choice
from cleaner_env.grading.verdict import Grade
from cleaner_env.tasks.base import Dataset, Problem, Task
from cleaner_env.tasks.catalog import HUB_DATASETS, hub_datasets
from cleaner_env.tasks.files import Row, abridged
from cleaner_env.tasks.generated import GENERATED, load_generated
from cleaner_env.tasks.loading import is_path, load_file, make_dataset, refuse_split, unknown_dataset

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox
    from cleaner_env.tasks.builtin.question import Question

__all__ = ["GPQATask", "lettered", "option_order"]

_OPTION: Final = re.compile(r"^[ \t]*\(?(?P<letter>[A-Z])[).:][ \t]+(?=\S)", re.MULTILINE)
_BLANK_LINE: Final = re.compile(r"\n[ \t]*\n")
_ANSWER_COLUMNS: Final = ("answer", "answer_key", "correct_option", "label")
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


def lettered(options: Sequence[str]) -> str:
    """Returns options as a prompt shows them: further lines of one are indented, so that none is taken for another option.

    Example:
        >>> print(lettered(["none", "a base,\\nB) not an acid"]))
        A) none
        B) a base,
           B) not an acid
    """
    indented = ("\n   ".join(option.splitlines()) for option in options)
    return "\n".join(f"{letter}) {option}" for letter, option in zip(ascii_uppercase, indented, strict=False))


class GPQATask(Task):
    r"""Questions with lettered options, answered by one letter in ``\boxed{}``.

    The data set ``builtin`` was written for this project. ``generated`` (splits ``train`` and ``test``) never runs out, and
    has none of the built-in questions. ``gpqa_diamond``, ``gpqa_main`` and the training pool ``open_agentrl_30k`` are on
    the hub. A file has the official columns (``Question``, ``Correct Answer``, ``Incorrect Answer 1`` to ``3``), or
    ``question``, ``options`` (a list) and ``answer`` (a letter, or the text of an option) or ``answer_index`` (the place of
    the right option, from 0 on), or verl's schema with lettered options in the prompt.

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
        if dataset == "builtin":
            from cleaner_env.tasks.builtin.gpqa import questions

            refuse_split(dataset, split)
            return make_dataset(dataset, [self._from_question(question.id, question) for question in questions()])
        if dataset == GENERATED:
            from cleaner_env.tasks.builtin.gpqa import draw, questions

            reserved = frozenset(question.prompt for question in questions())
            return load_generated(dataset, split, draw, self._from_question, reserved)
        if dataset in hub_datasets(self.name):
            from cleaner_env.tasks.hub import load_hub_dataset

            return load_hub_dataset(HUB_DATASETS[dataset], self._from_row, split)
        if is_path(dataset):
            refuse_split(dataset, split)
            return load_file(dataset, self._from_row)
        raise unknown_dataset(self.name, dataset, ["builtin", GENERATED, *hub_datasets(self.name)])

    def messages(self, problem: Problem) -> Conversation:
        letters = ascii_uppercase[: len(problem.metadata["options"])]
        instruction = f"Put the letter of the right option, {', '.join(letters[:-1])} or {letters[-1]}, in \\boxed{{}}."
        return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{problem.prompt}\n\n{instruction}"}

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox | None = None) -> Grade:
        del sandbox
        options = problem.metadata["options"]
        return grade_choice(turn, problem.answer, ascii_uppercase[: len(options)], options)

    def _from_question(self, identifier: str, question: Question) -> Problem:
        return self._problem(identifier, question.prompt, (question.correct, *question.incorrect), question.domain)

    def _from_row(self, row: Row, identifier: str) -> Problem | str:
        question = row.text("the question", "question", "problem", "prompt").strip()
        if row.repeats and not row.has("options", "choices"):
            found = _lettered_options(question, row.values["answer"])
            if isinstance(found, str):
                return found
            question, options = found
        else:
            options = _official_options(row) if row.has("correct answer") else _listed_options(row)
        if len({" ".join(option.casefold().split()) for option in options}) < len(options):
            if row.repeats:
                return "two options are the same"
            raise row.error(f"two options are the same: {'; '.join(options)[:200]}")
        domain = row.values.get("High-level domain") or row.values.get("domain")
        return self._problem(identifier, question, options, domain if isinstance(domain, str) else None)

    def _problem(self, identifier: str, question: str, options: Sequence[str], domain: str | None) -> Problem:
        """Puts the options, the right one first, into the order in which they are shown."""
        order = option_order(self.seed, identifier, len(options))
        shown = [options[place] for place in order]
        metadata = {"options": shown, "option_order": order, "domain": domain}
        return Problem(identifier, f"{question}\n\n{lettered(shown)}", ascii_uppercase[order.index(0)], metadata)


def _official_options(row: Row) -> list[str]:
    names = ("correct answer", "incorrect answer 1", "incorrect answer 2", "incorrect answer 3")
    return [row.text(f"the {name}", name).strip() for name in names]


def _lettered_options(prompt: str, answer: object) -> tuple[str, list[str]] | str:
    """Reads options A, B, ... off the lines of a prompt; returns the question and the options, the right one first.

    An option goes on to the next, the last one to a blank line. What comes after that, such as how to answer, is put to the
    end of the question. Returns the reason where a prompt cannot be read so.
    """
    found = list(_OPTION.finditer(prompt))
    letters = ascii_uppercase[: len(found)]
    if len(found) < 2 or [match["letter"] for match in found] != list(letters):
        return "the prompt has no lines with options A, B, ..."
    letter = answer.strip() if isinstance(answer, str) else ""
    if len(letter) != 1 or letter not in letters:
        return "the answer is no letter of an option"
    last, *after = _BLANK_LINE.split(prompt[found[-1].end() :].rstrip(), maxsplit=1)
    question = "\n\n".join(filter(None, [prompt[: found[0].start()].strip(), *(text.strip() for text in after)]))
    if not question:
        return "the prompt is options alone"
    options = [prompt[one.end() : following.start()].strip() for one, following in pairwise(found)] + [last]
    place = letters.index(letter)
    return question, [options[place], *options[:place], *options[place + 1 :]]


def _listed_options(row: Row) -> list[str]:
    """Returns the options of a row that lists them, the right one first."""
    options = row.get("the options (or 'Correct Answer', 'Incorrect Answer 1' ...)", "options", "choices")
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise row.error(f"options must be a list of texts, got {str(options)[:80]!r}")
    if not 2 <= len(options) <= len(ascii_uppercase):
        raise row.error(f"a question needs 2 to {len(ascii_uppercase)} options, got {len(options)}")
    options = [option.strip() for option in options]
    place = _right_place(row, options)
    return [options[place], *options[:place], *options[place + 1 :]]


def _right_place(row: Row, options: Sequence[str]) -> int:
    """Returns the place of the right option, which one column must tell and no other may contradict."""
    index = row.get("the place of the answer", "answer_index") if row.has("answer_index") else None
    if index is not None and (type(index) is not int or not 0 <= index < len(options)):
        raise row.error(f"answer_index must be an integer from 0 to {len(options) - 1}, got {abridged(index)}")
    if isinstance(index, int) and not row.has(*_ANSWER_COLUMNS):
        return index
    answer = row.text("the answer", *_ANSWER_COLUMNS).strip()
    letters = ascii_uppercase[: len(options)]
    told = {letters.index(answer.upper())} if answer.upper() in [*letters] else set()
    told |= {options.index(answer)} if answer in options else set()
    if not told:
        raise row.error(f"the answer must be one of the letters {letters} or the text of an option, got {answer[:80]!r}")
    if index is None and len(told) > 1:
        raise row.error(
            f"the answer {answer!r} is the letter of one option and the text of another; "
            "give the place of the right one, from 0 on, as answer_index"
        )
    if index is not None and index not in told:
        raise row.error(f"answer_index {index} and the answer {answer[:80]!r} are not the same option")
    return told.pop() if index is None else index
