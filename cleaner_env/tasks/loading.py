"""Reads problem files that people have: JSON, JSON Lines, CSV and, with pyarrow, Parquet.

Files are untrusted: they have a size limit, nothing in them is run, and every complaint names the file and the line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset, LazyProblems, Problem
from cleaner_env.tasks.verl_schema import flatten_verl

__all__ = [
    "MakeProblem",
    "Row",
    "fingerprint",
    "is_path",
    "load_file",
    "load_rows",
    "make_dataset",
    "read_rows",
    "refuse_split",
    "unknown_dataset",
]

MAX_FILE_BYTES: Final = 2 * 2**30
_SUFFIXES: Final = (".json", ".jsonl", ".csv", ".parquet")
_ID_COLUMNS: Final = ("id", "problem_id", "question_id", "record_id", "unique_id", "task_id", "problem_idx", "idx")


@dataclass(frozen=True)
class Row:
    """One record of a file.

    Attributes:
        where: File and line (of a Parquet file, the row), as messages show them.
        values: Column names and values.
        repeats: Whether the row is of a kind of file that repeats its rows.
    """

    where: str
    values: Mapping[str, Any]
    repeats: bool = False

    def error(self, message: str) -> DataError:
        """Returns an error that names this row's file and line."""
        return DataError(f"{self.where}: {message}")

    def has(self, *names: str) -> bool:
        """Whether one of these columns is there, upper case, spaces and underscores aside."""
        return self._column(names) is not None

    def get(self, what: str, *names: str) -> Any:
        """Returns the value of the first of these columns that is there.

        Raises:
            DataError: None is there; the message says which were found. Or the value is missing.
        """
        column = self._column(names)
        if column is None:
            found = ", ".join(map(str, self.values)) or "none"
            raise self.error(f"no column for {what}: expected one of {', '.join(names)}; found {found}")
        value = self.values[column]
        if value is None:
            raise self.error(f"{column} is missing")
        return value

    def text(self, what: str, *names: str) -> str:
        """Returns the value of such a column as text.

        Raises:
            DataError: As `get`; or the value is empty, is not text, or holds half a surrogate pair.
        """
        value = self.get(what, *names)
        if not isinstance(value, str):
            raise self.error(f"{what} must be text, got {_shown(value)}")
        if not value.strip():
            raise self.error(f"{what} is empty")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(f"{what} holds half a surrogate pair, which is no Unicode text")
        return value

    def _column(self, names: Sequence[str]) -> str | None:
        by_name = {_normal(column): column for column in [*self.values][::-1]}
        return next((by_name[_normal(name)] for name in names if _normal(name) in by_name), None)


MakeProblem: TypeAlias = Callable[[Row, str], "Problem | None"]
"""Makes a problem of a row and an id; ``None`` where the row is another task's."""


def _normal(column: str) -> str:
    return column.lower().replace("_", "").replace(" ", "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_path(dataset: str) -> bool:
    """Whether a data set is given as a file rather than by name."""
    return dataset.lower().endswith(_SUFFIXES) or Path(dataset).exists()


def unknown_dataset(task: str, dataset: str, names: Sequence[str]) -> DataError:
    """Returns the error for a name that no data set of a task has."""
    return DataError(
        f"unknown dataset {dataset!r} for {task}; choose {', '.join(names)}, or give the path of a "
        f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file"
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
    same prompt and the same answer, and none of those with the same prompt and different answers.

    Args:
        name: The data set's name. Rows without an id column are named by it, ``<name>-<number>``.
        rows: The rows.
        make_problem: Makes a problem of a row and an id, or returns ``None`` for a row that is another task's.
        lazy: Keep the rows, and make each problem again when it is looked up, for problems that are much larger than
            their rows. Each is made once here too, so that what is malformed is found now.

    Raises:
        DataError: A row is malformed, an id is there twice, or there is no problem.
    """
    stem = Path(name).stem
    kept: dict[str, tuple[Row, Problem]] = {}
    answers: dict[str, tuple[str, str]] = {}
    ambiguous: set[str] = set()
    seen: set[tuple[object, str]] = set()
    for number, row in enumerate(rows, 1):
        if row.repeats:
            content = (row.values.get("problem"), str(row.values.get("answer")))
            if content in seen:
                continue
            seen.add(content)
        identifier = _identifier(row, f"{stem}-{number}")
        problem = make_problem(row, identifier)
        if problem is None:
            continue
        if row.repeats:
            known = answers.setdefault(problem.prompt, (problem.answer, identifier))
            if known[0] != problem.answer:
                ambiguous.add(known[1])
            if known[1] != identifier or identifier in kept:
                continue
        if identifier in kept:
            first = kept[identifier][0].where.rpartition(", ")[2]
            raise row.error(f"id {_shown(identifier)} is there twice, first in {first}")
        kept[identifier] = (row, replace(problem, answer="") if lazy else problem)
    for identifier in ambiguous:
        kept.pop(identifier, None)
    if not kept:
        raise DataError(f"{name}: no problem in this file")
    if not lazy:
        return make_dataset(name, [problem for _, problem in kept.values()])
    rows_kept = [(row, identifier) for identifier, (row, _) in kept.items()]
    problems = LazyProblems(range(len(rows_kept)), partial(_made_again, rows_kept, make_problem))
    return Dataset(name, problems, fingerprint(problems))


def _made_again(rows: Sequence[tuple[Row, str]], make_problem: MakeProblem, number: int) -> Problem:
    problem = make_problem(*rows[number])
    assert problem is not None
    return problem


def _identifier(row: Row, default: str) -> str:
    if not row.has(*_ID_COLUMNS):
        return default
    value = row.get("the id", *_ID_COLUMNS)
    return str(value) if type(value) is int else row.text("the id", *_ID_COLUMNS)


def make_dataset(name: str, problems: Sequence[Problem]) -> Dataset:
    """Names a sequence of problems and takes its fingerprint."""
    return Dataset(name, tuple(problems), fingerprint(problems))


def fingerprint(problems: Iterable[Problem]) -> str:
    """Returns the SHA-256 of the ids, prompts and answers, in hex."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.prompt, problem.answer]).encode() + b"\n")
    return digest.hexdigest()


def read_rows(path: str) -> Iterator[Row]:
    """Reads the records of a file, one at a time.

    Raises:
        DataError: The file cannot be read or is malformed.
    """
    file = Path(path)
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error
        raise DataError(f"cannot read {path!r}: {reason}") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"cannot read {path!r}: not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: {status.st_size} bytes are more than the {MAX_FILE_BYTES} that are read; split the file")
    readers = {".json": _read_json, ".jsonl": _read_json_lines, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"cannot read {path!r}: the name must end in {', '.join(_SUFFIXES)}")
    try:
        for line, values in reader(file):
            where = f"{path}, line {line}"
            if not isinstance(values, dict):
                raise DataError(f"{where}: a problem must be an object, got {_shown(values)}")
            flat = flatten_verl(values)
            yield Row(where, values) if flat is None else Row(where, flat, repeats=True)
    except OSError as error:
        raise DataError(f"cannot read {path!r}: {error.strerror}") from None


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{where.format(line=line)}: not UTF-8 ({error.reason})") from None


def _parse(decode: Callable[[], Any], where: str) -> Any:
    try:
        return decode()
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None


def _read_json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            where = f"{file}, line {number}"
            text = _decoded(raw, where).strip()
            if text:
                yield number, _parse(lambda text=text: json.loads(text), where)  # type: ignore[misc]


def _read_json(file: Path) -> Iterator[tuple[int, Any]]:
    """Reads one array of objects, or objects one after the other; says on which line each begins."""
    text = _decoded(file.read_bytes(), f"{file}, line {{line}}")
    decoder = json.JSONDecoder()
    position, line, counted = _skip_space(text, 0), 1, 0
    in_array = text[position : position + 1] == "["
    position = _skip_space(text, position + 1) if in_array else position
    while position < len(text) and not (in_array and text[position] == "]"):
        line, counted = line + text.count("\n", counted, position), position
        where = f"{file}, line {line}"
        value, position = _parse(lambda start=position: decoder.raw_decode(text, start), where)  # type: ignore[misc]
        yield line, value
        position = _skip_space(text, position)
        if in_array and text[position : position + 1] == ",":
            position = _skip_space(text, position + 1)
        elif in_array and text[position : position + 1] != "]":
            raise DataError(f"{where}: not valid JSON: a comma or ] must follow this object")
    if in_array and text[position + 1 :].strip():
        raise DataError(f"{file}, line {line}: not valid JSON: text after the array")
    if in_array and position >= len(text):
        raise DataError(f"{file}, line {line}: not valid JSON: the array is not closed")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _read_csv(file: Path) -> Iterator[tuple[int, Any]]:
    text = _decoded(file.read_bytes(), f"{file}, line {{line}}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for record in reader:
            if header is None:
                header = record
                if len(set(header)) < len(header):
                    raise DataError(f"{file}, line 1: a column name is there twice: {', '.join(header)}")
            elif record:
                if len(record) != len(header):
                    raise DataError(f"{file}, line {line}: {len(record)} fields, but the header has {len(header)} columns")
                yield line, dict(zip(header, record, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}, line {line}: not valid CSV: {error}") from None


def _read_parquet(file: Path) -> Iterator[tuple[int, Any]]:
    if find_spec("pyarrow") is None:
        raise DataError(f"reading {str(file)!r} needs pyarrow: pip install 'cleaner-env[data]'")
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    number = 0
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                number += 1
                yield number, values
    except pyarrow.ArrowException as error:
        raise DataError(f"{file}, line {number + 1}: not valid Parquet: {str(error).splitlines()[0]}") from None
