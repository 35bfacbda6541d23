"""LiveCodeBench: programming problems, graded by hidden tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError, DataError
from cleaner_env.grading.code import CodeTests, Judgement, JudgeMode, grade_code, judge_code
from cleaner_env.grading.verdict import Grade
from cleaner_env.tasks.base import Dataset, Problem, Task
from cleaner_env.tasks.catalog import HUB_DATASETS, hub_datasets
from cleaner_env.tasks.generated import GENERATED, load_generated
from cleaner_env.tasks.livecodebench_selection import ERRATA, Selection
from cleaner_env.tasks.loading import Row, is_path, load_file, make_dataset, refuse_split, unknown_dataset
from cleaner_env.tasks.private_tests import unpack_private_tests

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox
    from cleaner_env.tasks.builtin.pipelines import Pipeline

__all__ = ["LiveCodeBenchTask"]

_SYSTEM: Final = "You solve programming problems in Python. Reason step by step."
_PROGRAM: Final = (
    "Write a Python program that reads the input from standard input and prints the output. "
    "Give the whole program in one block fenced with ```python at the end of your answer."
)
_FUNCTION: Final = (
    "Write the Python function {function}, as a method of the class Solution where the starter code says so. "
    "Give the whole code in one block fenced with ```python at the end of your answer."
)
_TIME_LIMIT_S: Final = 6.0
_MEMORY_MB: Final = 1024


class LiveCodeBenchTask(Task):
    """Programs and functions in Python, run against tests that the model does not see.

    The data set ``builtin`` was written for this project. ``generated`` (splits ``train`` and ``test``) never runs out;
    its programs take one to four steps on a list of integers. ``livecodebench_v1`` to ``livecodebench_v6``, which are
    releases with all problems up to then, and the training pool ``open_agentrl_30k`` are on the hub. The split narrows a
    release down to a window of contest dates, ``2025-02-01..2025-05-31``, or to what releases added, ``v5..v6``; so does
    what follows a colon in the name, as in ``livecodebench_v6:v6``.

    A file has the official columns (``question_content``, ``public_test_cases``, ``private_test_cases``, ...; private tests
    are unpacked without unpickling anything), or ``question`` and ``tests``, a list of objects with ``input`` and
    ``output``, and ``fn_name`` where a function is wanted, or verl's schema.

    `Problem.answer` holds the tests as `CodeTests.to_json` writes them. ``metadata["erratum"]`` is set on the problems with
    known faults: several right outputs, a judge to talk to, or wrong tests.

    Example:
        >>> problem = LiveCodeBenchTask().load("builtin").problems[0]
        >>> problem.id, problem.metadata["difficulty"], len(CodeTests.from_json(problem.answer).tests)
        ('builtin-livecodebench-busy-rooms', 'medium', 11)
    """

    name = "livecodebench"

    def load(self, dataset: str = "builtin", split: str | None = None) -> Dataset:
        name, colon, selected = dataset.partition(":")
        if dataset == "builtin":
            refuse_split(dataset, split)
            from cleaner_env.tasks.builtin.programming import programs

            made = [_problem(p.id, p.prompt, p.tests, p.starter_code, difficulty=p.difficulty) for p in programs()]
            return make_dataset(dataset, made)
        if dataset == GENERATED:
            from cleaner_env.tasks.builtin.pipelines import draw_pipeline

            return load_generated(dataset, split, draw_pipeline, _from_pipeline)
        if name in hub_datasets(self.name):
            from cleaner_env.tasks.hub import load_hub_dataset

            entry = HUB_DATASETS[name]
            if colon and split is not None:
                raise DataError(f"give the part of {name!r} in its name or as the split, not both: {selected!r}, {split!r}")
            part = selected if colon else split
            if part in (None, entry.split):
                return load_hub_dataset(entry, _from_row, lazy=True)
            selection = Selection.parse(name, part or "", len(entry.files))
            loaded = load_hub_dataset(entry, selection.filter(_from_row), lazy=True, files=selection.files)
            return replace(loaded, name=f"{name}:{part}")
        if is_path(dataset):
            if split in (None, "test"):
                return load_file(dataset, _from_row, lazy=True)
            return load_file(dataset, Selection.parse(dataset, split, 0).filter(_from_row), lazy=True)
        raise unknown_dataset(self.name, dataset, ["builtin", GENERATED, *hub_datasets(self.name)])

    def messages(self, problem: Problem) -> Conversation:
        starter_code, function = problem.metadata["starter_code"], problem.metadata["function"]
        parts = [problem.prompt, _FUNCTION.format(function=function) if function else _PROGRAM]
        if starter_code.strip():
            parts.append(f"Starter code:\n```python\n{starter_code.strip()}\n```")
        return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": "\n\n".join(parts)}

    def grade(self, problem: Problem, turn: str, sandbox: Sandbox) -> Grade:
        return grade_code(turn, problem.answer, sandbox)

    def judge(self, problem: Problem, turn: str, sandbox: Sandbox, workers: int = 1) -> dict[JudgeMode, Judgement]:
        """Judges a final turn by this project's rules and by LiveCodeBench's own, for figures that can be compared."""
        tests = CodeTests.from_json(problem.answer)
        modes: tuple[JudgeMode, ...] = ("strict", "livecodebench")
        return {mode: judge_code(turn, tests, sandbox, mode=mode, workers=workers) for mode in modes}

    def check_tool_format(self, name: str) -> None:
        if name == "python":
            raise ConfigError(
                "tool_format 'python' cannot be used with livecodebench, whose answers are Python blocks too; use 'hermes'"
            )


def _problem(identifier: str, prompt: str, tests: CodeTests, starter_code: str, **metadata: str | None) -> Problem:
    return Problem(
        identifier,
        prompt,
        tests.to_json(),
        {"starter_code": starter_code, "function": tests.function, **metadata},
    )


def _from_pipeline(identifier: str, pipeline: Pipeline) -> Problem:
    return _problem(identifier, pipeline.prompt, pipeline.tests, "", difficulty=pipeline.difficulty)


def _from_row(row: Row, identifier: str) -> Problem | str:
    if row.repeats and row.values.get("tests") is None:
        return "the reference is no inputs with as many outputs"
    prompt = row.text("the question", "question_content", "question", "problem", "prompt")
    official = row.has("public_test_cases", "private_test_cases")
    try:
        tests = _official_tests(row.values) if official else _plain_tests(row)
    except DataError as error:
        raise error if str(error).startswith(row.where) else row.error(str(error)) from None
    described = ("difficulty", "platform", "contest_date", "question_title")
    metadata = {key: value for key in described if isinstance(value := row.values.get(key), str)}
    erratum = ERRATA.get(identifier) or ERRATA.get(_slug(metadata.get("question_title", "")))
    if official and erratum:
        metadata["erratum"] = erratum
    starter_code = row.values.get("starter_code")
    return _problem(identifier, prompt, tests, starter_code if isinstance(starter_code, str) else "", **metadata)


def _slug(title: str) -> str:
    return "-".join(title.lower().split())


def _plain_tests(row: Row) -> CodeTests:
    return CodeTests.from_mapping({**row.values, "tests": row.get("the tests", "tests", "test_cases")})


def _official_tests(values: Any) -> CodeTests:
    """Reads the tests of a record in LiveCodeBench's schema, the public ones first."""
    tests = [
        *_decoded("public_test_cases", values.get("public_test_cases") or "[]"),
        *_decoded("private_test_cases", unpack_private_tests(values.get("private_test_cases") or "[]")),
    ]
    try:
        kinds = {test["testtype"] for test in tests}
    except (KeyError, TypeError):
        raise DataError("a test must be an object with input, output and testtype") from None
    if kinds - {"stdin", "functional"} or len(kinds) > 1:
        raise DataError(f"testtype must be stdin or functional for all tests of a problem, got {sorted(map(str, kinds))}")
    function = _function_name(values.get("metadata")) if kinds == {"functional"} else None
    limits = {"time_limit_s": _TIME_LIMIT_S, "memory_mb": _MEMORY_MB}
    return CodeTests.from_mapping({"tests": tests, "fn_name": function, **limits})


def _decoded(column: str, value: object) -> list[Any]:
    try:
        tests = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{column} is not JSON: {error}") from None
    if not isinstance(tests, list):
        raise DataError(f"{column} must be a list, got {type(tests).__name__}")
    return tests


def _function_name(metadata: object) -> str:
    try:
        decoded = json.loads(metadata) if isinstance(metadata, str) else metadata
    except (ValueError, RecursionError):
        decoded = None
    name = decoded.get("func_name") if isinstance(decoded, dict) else None
    if not isinstance(name, str):
        raise DataError("metadata must name the function to call as func_name, for its tests are functional")
    return name
