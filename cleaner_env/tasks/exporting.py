"""Writes problems as JSON Lines in the schema that `Task.load` reads back, to the same fingerprint."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cleaner_env.errors import DataError
from cleaner_env.tasks.base import Problem, Task
from cleaner_env.tasks.gpqa import lettered

__all__ = ["as_row", "export"]

_TOLD_ELSEWHERE = frozenset({"options", "option_order", "function", "parameters", "steps"})


def as_row(task: Task, problem: Problem) -> dict[str, Any]:
    """Returns a problem as a row.

    The options of a question are put back into the order of their file, the right one first: the order in which they are
    shown follows from the seed and the id again.
    """
    described = {key: value for key, value in problem.metadata.items() if key not in _TOLD_ELSEWHERE and value is not None}
    if task.name == "gpqa":
        shown, order = problem.metadata["options"], problem.metadata["option_order"]
        options = [text for _, text in sorted(zip(order, shown, strict=True))]
        question = problem.prompt.removesuffix(f"\n\n{lettered(shown)}")
        return {"id": problem.id, "question": question, "options": options, "answer_index": 0, **described}
    if task.name == "livecodebench":
        return {"id": problem.id, "question": problem.prompt, **described, **json.loads(problem.answer)}
    return {"id": problem.id, "problem": problem.prompt, "answer": problem.answer, **described}


def export(task: Task, problems: Iterable[Problem], path: Path, overwrite: bool = False) -> int:
    """Writes problems to a file, which is there whole or not at all; returns how many.

    Raises:
        DataError: The file is there already and shall not be overwritten, its name does not end in .jsonl, or it cannot be
            written.
    """
    if path.suffix.lower() != ".jsonl":
        raise DataError(f"problems are exported as JSON Lines: the name must end in .jsonl, got {str(path)!r}")
    if path.exists() and not overwrite:
        raise DataError(f"{str(path)!r} is there already; give --force to overwrite it")
    count = 0
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for problem in problems:
                file.write(json.dumps(as_row(task, problem), ensure_ascii=False, default=_plain) + "\n")
                count += 1
        os.chmod(temporary, 0o644)  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return count


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
