"""Runs a program against tests in a sandbox, one fresh process per test, and compares what came out here.

Inputs go into the sandbox; expected outputs never do, so nothing that a program does there, to its own process, the runner
or the standard library, tells it what would have been right or turns a wrong output into a pass.

A session is opened once and its interpreter forked per test, which costs a few milliseconds where starting an interpreter
costs tens. Each fork starts from the same untouched state, and what a test leaves behind is cleared away before the next.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from cleaner_env.errors import InfrastructureError
from cleaner_env.grading.checkers import livecodebench_output, passes
from cleaner_env.grading.code_tests import CodeTest, CodeTests
from cleaner_env.grading.comparison import read_json, same_value

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Execution, Limits, Sandbox, Session

__all__ = ["Judge", "TestResult", "TestStatus"]

TestStatus: TypeAlias = Literal["AC", "WA", "TLE", "MLE", "OLE", "RE", "skipped"]
"""Accepted, wrong answer, time, memory or output limit, runtime error; ``skipped`` after an early stop."""

_STATUSES: Final[dict[str, TestStatus]] = {
    "timeout": "TLE",
    "oom": "MLE",
    "output_limit": "OLE",
    "error": "RE",
    "killed": "RE",
    "exit": "RE",
}
_OUTPUT_BYTES: Final = 16 * 2**20
_BATCH_OUTPUT_BYTES: Final = 64 * 2**20
_BATCH_INPUT_BYTES: Final = 32 * 2**20
_LARGEST_BATCH: Final = 64
_FILE_MB: Final = 16
_LENGTH_BYTES: Final = 12  # As the runner has it.
_PATIENCE_S: Final = 5.0
_OVERHEAD_S: Final = 1.0
_SETUP_S: Final = 30.0


@dataclass(frozen=True)
class TestResult:
    """How one test went.

    Attributes:
        status: See `TestStatus`.
        seconds: Seconds on the clock, as far as known.
    """

    __test__ = False  # not a test of pytest's

    status: TestStatus
    seconds: float = 0.0


class Judge:
    """Judges programs, with sessions that it keeps open from one program to the next.

    Args:
        sandbox: Where the programs run; it stays the caller's.
        workers: Tests run at a time.

    Example:
        >>> from cleaner_env.sandbox import make_sandbox
        >>> with make_sandbox("local") as sandbox, Judge(sandbox) as judge:
        ...     [result.status for result in judge.run("print(int(input()) * 2)", CodeTests((CodeTest("21", "42"),)))]
        ['AC']
    """

    def __init__(self, sandbox: Sandbox, workers: int = 1) -> None:
        self._sandbox = sandbox
        self._workers = max(1, workers)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def run(
        self,
        code: str,
        tests: CodeTests,
        *,
        total_limit_s: float = 120.0,
        stop_early: bool = True,
        compatible: bool = False,
    ) -> list[TestResult]:
        """Runs the tests of a program.

        Args:
            code: The program.
            tests: The tests and their limits.
            total_limit_s: Seconds on the clock for all tests together; those that do not fit in have the status TLE.
            stop_early: Skip the tests that have not begun when one has failed.
            compatible: Run and compare as LiveCodeBench's own judge does, its quirks included.

        Returns:
            One result per test, in order.

        Raises:
            InfrastructureError: The sandbox failed.
        """
        results = [TestResult("skipped")] * len(tests.tests)
        run = _Run(code, tests, time.monotonic() + total_limit_s, stop_early, compatible, results)
        batches = _batches(tests.tests, self._workers)
        if self._workers == 1 or len(batches) == 1:
            for batch in batches:
                self._judge(run, batch)
        else:
            with ThreadPoolExecutor(self._workers) as pool:
                for future in [pool.submit(self._judge, run, batch) for batch in batches]:
                    future.result()
        return results

    def close(self) -> None:
        """Closes the sessions. May be called twice."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.session.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _judge(self, run: _Run, batch: list[int]) -> None:
        if run.stopped:
            return
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker(self._sandbox)
        try:
            worker.judge(run, batch)
        except BaseException:
            worker.session.close()
            run.stopped = True
            raise
        with self._lock:
            self._idle.append(worker)


@dataclass
class _Run:
    """What the workers on one program share."""

    code: str
    tests: CodeTests
    deadline: float
    stop_early: bool
    compatible: bool
    results: list[TestResult]
    stopped: bool = False

    def record(self, number: int, result: TestResult) -> None:
        self.results[number] = result
        if self.stop_early and result.status != "AC":
            self.stopped = True


class _Worker:
    """A session that holds the runner."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.session: Session = sandbox.open()
        self._own = _own_memory(sandbox)
        setup = f"{_runner()}\nprepare({self._own['own_memory']})"
        ready = self.session.run(setup, limits=_limits(_SETUP_S, 512))
        if not ready.ok:
            self.session.close()
            raise InfrastructureError(f"the judge could not be set up: {ready.status}")

    def judge(self, run: _Run, batch: list[int]) -> None:
        """Judges some of the tests, in as few cells as it takes."""
        pending = batch
        together = len(pending)
        while pending and not run.stopped:
            left_s = run.deadline - time.monotonic()
            if left_s <= 0:
                for number in pending:
                    run.record(number, TestResult("TLE"))
                return
            execution, reports = self._run_cell(run, pending[:together], left_s)
            for number, report in zip(pending, reports, strict=False):
                run.record(number, self._result(run, run.tests.tests[number], report))
            pending = pending[len(reports) :]
            if not pending or run.stopped or execution.status == "exit":
                if execution.status == "exit" and not reports and pending:
                    run.record(pending[0], TestResult("RE"))  # It had the runner end.
                    pending = pending[1:]
                continue
            if execution.status == "output_limit" and together > 1:
                together = 1  # Perhaps it is only their sum that is too much.
                continue
            run.record(pending[0], TestResult(_STATUSES.get(execution.status, "RE"), execution.duration_s))
            pending = pending[1:]

    def _run_cell(self, run: _Run, batch: list[int], left_s: float) -> tuple[Execution, list[dict[str, Any]]]:
        inputs = [run.tests.tests[number].input.encode("utf-8", "replace") for number in batch]
        stdin = b"".join(b"%*d%b" % (_LENGTH_BYTES, len(data), data) for data in inputs)
        order = {
            "code": run.code,
            "function": run.tests.function,
            "compatible": run.compatible,
            "time_limit_s": run.tests.time_limit_s,
            "output_bytes": _OUTPUT_BYTES,
            "stop_early": run.stop_early,
            **self._own,
        }
        most_s = len(batch) * (run.tests.time_limit_s + _OVERHEAD_S) + _PATIENCE_S  # For a test may stop the runner itself.
        limits = _limits(min(left_s, most_s), run.tests.memory_mb, len(stdin))
        execution = self.session.run(f"run_tests({json.dumps(order)!r})", stdin.decode(), limits)
        if execution.status == "infrastructure_error":
            raise InfrastructureError(f"the sandbox failed while a program was graded: {execution.stderr}")
        return execution, _reports(execution.stdout, len(batch))

    def _result(self, run: _Run, test: CodeTest, report: dict[str, Any]) -> TestResult:
        seconds = report["seconds"]
        if report["status"] != "ok":
            return TestResult(_STATUSES.get(report["status"], "RE"), seconds)
        if run.tests.function is not None:
            right = _right_value(report["output"], test.output, run.compatible)
        elif run.compatible:
            right = livecodebench_output(report["output"], test.output)
        else:
            right = passes(run.tests.checker, test.input, report["output"], test.output, self.sandbox)
        return TestResult("AC" if right else "WA", seconds)


_known_sandboxes: weakref.WeakKeyDictionary[Sandbox, dict[str, bool]] = weakref.WeakKeyDictionary()


def _own_memory(sandbox: Sandbox) -> dict[str, bool]:
    """Returns which kinds of shared memory a session has for itself, asked of each sandbox once."""
    if sandbox not in _known_sandboxes:
        namespaces: Any = sandbox.describe().get("namespaces", ())
        _known_sandboxes[sandbox] = {"own_memory": "mount" in namespaces, "own_ipc": "ipc" in namespaces}
    return _known_sandboxes[sandbox]


def _right_value(output: str, expected: str, compatible: bool) -> bool:
    try:
        if not compatible:
            return same_value(read_json(output), read_json(expected))
        lossless, text = json.loads(output)
        return lossless is True and bool(_livecodebench_json(text) == _livecodebench_json(expected))
    except (ValueError, TypeError, RecursionError):
        return False


def _livecodebench_json(text: str) -> Any:
    return json.loads(text, parse_int=Decimal)  # Python itself reads no integer of more than 4,300 digits.


def _reports(output: str, most: int) -> list[dict[str, Any]]:
    """Reads the runner's lines, as far as they are what it writes."""
    reports: list[dict[str, Any]] = []
    for line in output.splitlines()[:most]:
        try:
            report = json.loads(line)
            known = {"status": str(report["status"]), "output": report["output"], "seconds": float(report["seconds"])}
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        if not isinstance(known["output"], str):
            break
        reports.append(known)
    return reports


def _batches(tests: tuple[CodeTest, ...], workers: int) -> list[list[int]]:
    """Deals the tests into batches, small ones first, so that a wrong program is found out early."""
    batches: list[list[int]] = []
    number, size = 0, 4
    while number < len(tests):
        batch, taken = [number], len(tests[number].input)
        share = -(-(len(tests) - number) // workers)
        while len(batch) < min(size, share) and number + len(batch) < len(tests):
            taken += len(tests[number + len(batch)].input)
            if taken > _BATCH_INPUT_BYTES:
                break
            batch.append(number + len(batch))
        batches.append(batch)
        number += len(batch)
        if len(batches) % workers == 0:
            size = min(2 * size, _LARGEST_BATCH)
    return batches


def _limits(wall_s: float, memory_mb: int, input_bytes: int = 0) -> Limits:
    from cleaner_env.sandbox.protocol import Limits

    file_mb = _FILE_MB + input_bytes // 2**20  # An input is handed over as a file.
    return Limits(wall_s=wall_s, memory_mb=memory_mb, output_bytes=_BATCH_OUTPUT_BYTES, file_mb=file_mb)


@cache
def _runner() -> str:
    return Path(__file__).with_name("judge_runner.py").read_text(encoding="utf-8")
