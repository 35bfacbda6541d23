"""Reads problem files that people have: JSON, JSON Lines, CSV and, with pyarrow, Parquet.

Files are untrusted: they have a size limit, nothing in them is run, and every complaint names the file and the line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Dataset, Problem

__all__ = ["Row", "is_path", "load_file", "make_dataset", "read_rows", "refuse_split", "unknown_dataset"]

MAX_FILE_BYTES: Final = 2 * 2**30
_SUFFIXES: Final = (".json", ".jsonl", ".csv", ".parquet")
_ID_COLUMNS: Final = ("id", "problem_id", "question_id", "record_id", "unique_id", "task_id")


@dataclass(frozen=True)
class Row:
    """One record of a file.

    Attributes:
        where: File and line (of a Parquet file, the row), as messages show them.
        values: Column names and values.
    """

    where: str
    values: Mapping[str, Any]

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


def refuse_split(dataset: str, split: str | None) -> None:
    """Raises unless the split is ``None`` or ``"test"``, the only one there is.

    Raises:
        DataError: Another split is asked for.
    """
    if split not in (None, "test"):
        raise DataError(f"dataset {dataset!r} has no split {split!r}; the only one is 'test'")


def load_file(path: str, make_problem: Callable[[Row, str], Problem]) -> Dataset:
    """Loads the problems of a file.

    Args:
        path: The file; its suffix says which kind.
        make_problem: Makes a problem of a row and an id. Rows without an id column are named ``<stem>-<number>``.

    Raises:
        DataError: The file cannot be read, is malformed or empty, or has an id twice.
    """
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for number, row in enumerate(read_rows(path), 1):
        identifier = _identifier(row, f"{Path(path).stem}-{number}")
        if identifier in seen:
            raise row.error(f"id {_shown(identifier)} is there twice, first in {seen[identifier]}")
        seen[identifier] = row.where.rpartition(", ")[2]
        problems.append(make_problem(row, identifier))
    if not problems:
        raise DataError(f"{path}: no problem in this file")
    return make_dataset(path, problems)


def _identifier(row: Row, default: str) -> str:
    if not row.has(*_ID_COLUMNS):
        return default
    value = row.get("the id", *_ID_COLUMNS)
    return str(value) if type(value) is int else row.text("the id", *_ID_COLUMNS)


def make_dataset(name: str, problems: Sequence[Problem]) -> Dataset:
    """Names a sequence of problems and takes the SHA-256 of their ids, prompts and answers."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.prompt, problem.answer]).encode() + b"\n")
    return Dataset(name, tuple(problems), digest.hexdigest())


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
            yield _checked(Row(f"{path}, line {line}", {} if not isinstance(values, dict) else values), values)
    except OSError as error:
        raise DataError(f"cannot read {path!r}: {error.strerror}") from None


def _checked(row: Row, values: object) -> Row:
    if not isinstance(values, dict):
        raise row.error(f"a problem must be an object, got {_shown(values)}")
    return row


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
