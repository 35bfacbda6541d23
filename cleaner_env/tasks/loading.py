"""Makes data sets of the rows of files, or of problems that are there already."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset, LazyProblems, Problem
from cleaner_env.tasks.files import SUFFIXES, Row, abridged, read_rows

__all__ = [
    "MakeProblem",
    "Row",
    "counted",
    "fingerprint",
    "is_path",
    "load_file",
    "load_rows",
    "make_dataset",
    "refuse_split",
    "unknown_dataset",
]

_ID_COLUMNS: Final = ("id", "problem_id", "question_id", "record_id", "unique_id", "task_id", "problem_idx", "idx")
_REPEATED: Final = "it repeats another"
_AMBIGUOUS: Final = "the same prompt has another answer too"

MakeProblem: TypeAlias = Callable[[Row, str], "Problem | str"]
"""Makes a problem of a row and an id, or says why the row is left out, as where it is another task's."""


def is_path(dataset: str) -> bool:
    """Whether a data set is given as a file rather than by name."""
    return dataset.lower().endswith(SUFFIXES) or Path(dataset).exists()


def unknown_dataset(task: str, dataset: str, names: Sequence[str]) -> DataError:
    """Returns the error for a name that no data set of a task has."""
    return DataError(
        f"unknown dataset {dataset!r} for {task}; choose {', '.join(names)}, or give the path of a "
        f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file"
    )


def refuse_split(dataset: str, split: str | None, only: str = "test") -> None:
    """Raises unless the split is ``None`` or the only one there is.

    Raises:
        DataError: Another split is asked for.
    """
    if split not in (None, only):
        raise DataError(f"dataset {dataset!r} has no split {split!r}; the only one is {only!r}")


def load_file(path: str, make_problem: MakeProblem, lazy: bool = False) -> Dataset:
    """Loads the problems of a file; see `load_rows`.

    Raises:
        DataError: The file cannot be read, is malformed or empty, or has an id twice.
    """
    return load_rows(path, read_rows(path), make_problem, lazy)


def load_rows(name: str, rows: Iterable[Row], make_problem: MakeProblem, lazy: bool = False) -> Dataset:
    """Makes a data set of rows.

    Rows in the schema of verl may repeat a problem, as its training files do to be longer: one is kept of those with the
    same prompt and the same answer, and none of those with the same prompt and different answers. Their ids need not be
    unique, as where each source of a pool numbers its own rows: an id that another problem has is as good as none.

    Args:
        name: The data set's name. Rows without an id are named by it, ``<name>-<number>``.
        rows: The rows.
        make_problem: Makes a problem of a row and an id, or says why the row is left out.
        lazy: Keep the rows, and make each problem again when it is looked up, for problems that are much larger than
            their rows. Each is made once here too, so that what is malformed is found now.

    Returns:
        The data set, with the number of rows that were left out for each reason.

    Raises:
        DataError: A row is malformed or is no Unicode text, an id is there twice, or there is no problem.
    """
    stem = Path(name).stem
    kept: dict[str, tuple[Row, Problem]] = {}
    of_prompt: dict[str, tuple[str, str, str]] = {}
    seen: set[tuple[str, str]] = set()
    ambiguous: set[str] = set()
    left_out: Counter[str] = Counter()
    for number, row in enumerate(rows, 1):
        identifier = _identifier(row, f"{stem}-{number}")
        prompt, known = str(row.values.get("problem")), None
        if row.repeats:
            content = (prompt, str(row.values.get("answer")))
            if content in seen:
                left_out[_REPEATED] += 1
                continue
            seen.add(content)
            known = of_prompt.get(prompt)
            # The order of options depends on the id: only under that of the first with this prompt are problems compared.
            identifier = known[0] if known else f"{stem}-{number}" if identifier in kept else identifier
        problem = make_problem(row, identifier)
        if isinstance(problem, str):
            left_out[problem] += 1
        elif known is not None:
            agrees = known == (identifier, problem.prompt, problem.answer)
            left_out[_REPEATED if agrees else _AMBIGUOUS] += 1
            ambiguous.update(() if agrees else [identifier])
        elif identifier in kept:
            first = kept[identifier][0].where.rpartition(", ")[2]
            raise row.error(f"id {abridged(identifier)} is there twice, first in {first}")
        else:
            _refuse_half_characters(row, problem)
            kept[identifier] = (row, replace(problem, answer="") if lazy else problem)
            if row.repeats:
                of_prompt[prompt] = (identifier, problem.prompt, problem.answer)
    for identifier in ambiguous:
        del kept[identifier]
        left_out[_AMBIGUOUS] += 1
    if not kept:
        why = f"; left out: {counted(left_out)}" if left_out else ""
        raise DataError(f"{name}: no problem in this file{why}")
    if not lazy:
        return replace(make_dataset(name, [problem for _, problem in kept.values()]), left_out=dict(left_out))
    rows_kept = [(row, identifier) for identifier, (row, _) in kept.items()]
    problems = LazyProblems(range(len(rows_kept)), partial(_made_again, rows_kept, make_problem))
    return Dataset(name, problems, fingerprint(problems), dict(left_out))


def counted(left_out: Mapping[str, int]) -> str:
    """Returns the reasons for which rows were left out, and how often each, as text.

    Example:
        >>> counted({"the answer is no integer": 3, "it repeats another": 1})
        'the answer is no integer (3), it repeats another (1)'
    """
    return ", ".join(f"{reason} ({count})" for reason, count in left_out.items())


def _made_again(rows: Sequence[tuple[Row, str]], make_problem: MakeProblem, number: int) -> Problem:
    problem = make_problem(*rows[number])
    assert isinstance(problem, Problem)
    return problem


def _identifier(row: Row, default: str) -> str:
    if not row.has(*_ID_COLUMNS):
        return default
    value = row.get("the id", *_ID_COLUMNS)
    return str(value) if type(value) is int else row.text("the id", *_ID_COLUMNS)


def _refuse_half_characters(row: Row, problem: Problem) -> None:
    """Raises where a text could not be written out; JSON can hold half a surrogate pair, also inside of JSON in a text."""
    metadata = json.dumps(dict(problem.metadata), ensure_ascii=False, default=str)
    texts = {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, "metadata": metadata}
    for what, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise row.error(f"the {what} holds half a surrogate pair, which is no Unicode text") from None


def make_dataset(name: str, problems: Sequence[Problem]) -> Dataset:
    """Names a sequence of problems and takes its fingerprint."""
    return Dataset(name, tuple(problems), fingerprint(problems))


def fingerprint(problems: Iterable[Problem]) -> str:
    """Returns the SHA-256 of the ids, prompts and answers, in hex."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.prompt, problem.answer]).encode() + b"\n")
    return digest.hexdigest()
