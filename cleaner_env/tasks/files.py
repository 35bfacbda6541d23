"""Reads rows of the files that people have: JSON, JSON Lines, CSV and, with pyarrow, Parquet.

Files are untrusted: they have a size limit, nothing in them is run, and every complaint names the file and the line.
"""

from __future__ import annotations

import csv
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
from cleaner_env.tasks.verl_schema import flatten_verl

__all__ = ["SUFFIXES", "Row", "abridged", "read_rows"]

MAX_FILE_BYTES: Final = 2 * 2**30
SUFFIXES: Final = (".json", ".jsonl", ".csv", ".parquet")
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


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
            DataError: None is there; the message says which were found. Or the value is missing, or another column of the
                same name, upper case, spaces and underscores aside, has another value.
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
            DataError: As `get`; or the value is empty or is not text.
        """
        value = self.get(what, *names)
        if not isinstance(value, str):
            raise self.error(f"{what} must be text, got {abridged(value)}")
        if not value.strip():
            raise self.error(f"{what} is empty")
        return value

    def _column(self, names: Sequence[str]) -> str | None:
        for name in map(_normal, names):
            columns = [column for column in self.values if _normal(column) == name]
            if any(self.values[column] != self.values[columns[0]] for column in columns[1:]):
                raise self.error(f"the columns {' and '.join(columns)} differ; leave one")
            if columns:
                return columns[0]
        return None


def _normal(column: str) -> str:
    return column.lower().replace("_", "").replace(" ", "")


def abridged(value: object) -> str:
    """Returns the value as messages show it, on one line of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
        raise DataError(f"cannot read {path!r}: the name must end in {', '.join(SUFFIXES)}")
    try:
        for line, values in reader(file):
            where = f"{path}, line {line}"
            if not isinstance(values, dict):
                raise DataError(f"{where}: a problem must be an object, got {abridged(values)}")
            flat = flatten_verl(values)
            yield Row(where, values) if flat is None else Row(where, flat, repeats=True)
    except OSError as error:
        raise DataError(f"cannot read {path!r}: {error.strerror}") from None


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        packed = next((kind for magic, kind in _MAGIC.items() if raw.startswith(magic)), None)
        way_out = f"it is packed with {packed}, so unpack it" if packed else "save it as UTF-8"
        raise DataError(f"{where.format(line=line)}: not UTF-8 ({error.reason}); {way_out}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(abridged(key) for key in keys if keys.count(key) > 1)} is there twice")
    return made


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


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
                yield number, _parse(lambda text=text: _DECODER.decode(text), where)  # type: ignore[misc]


def _read_json(file: Path) -> Iterator[tuple[int, Any]]:
    """Reads one array of objects, or objects one after the other; says on which line each begins."""
    text = _decoded(file.read_bytes(), f"{file}, line {{line}}")
    position, line, counted = _skip_space(text, 0), 1, 0
    in_array = text[position : position + 1] == "["
    position = _skip_space(text, position + 1) if in_array else position
    while position < len(text) and not (in_array and text[position] == "]"):
        line, counted = line + text.count("\n", counted, position), position
        where = f"{file}, line {line}"
        value, position = _parse(lambda start=position: _DECODER.raw_decode(text, start), where)  # type: ignore[misc]
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
        too_long = "field larger than" in str(error)
        way_out = "; JSON Lines (.jsonl) have no such limit" if too_long else ""
        raise DataError(f"{file}, line {line}: not valid CSV: {error}{way_out}") from None


def _read_parquet(file: Path) -> Iterator[tuple[int, Any]]:
    if find_spec("pyarrow") is None:
        raise DataError(f"reading {str(file)!r} needs pyarrow: pip install 'cleaner-env[data]'")
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    number = 0
    with file.open("rb") as source:
        try:
            for batch in parquet.ParquetFile(source).iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield number, values
        except (pyarrow.ArrowException, OSError, ValueError) as error:  # Of a broken file pyarrow raises any of these.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{file}, line {number + 1}: not valid Parquet: {reason}") from None
