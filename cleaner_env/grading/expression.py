r"""Grades a response whose answer is a mathematical expression, with Math-Verify.

The answer is the last closed box, else the last ``Answer:`` line, as for integers. Integers are compared here; everything
else in a process of its own, for a short expression such as ``9^{9^{9^9}}`` can take all time and memory there is. That
process has limits on memory and time, and a fork of it stands in at once when one of them ends it.

`cleaner_env.grading.expression_worker` says what counts as equal.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from typing import Final

from cleaner_env.errors import ConfigError, DataError, InfrastructureError
from cleaner_env.grading.extraction import answer_lines, boxes, peel, without_thinking
from cleaner_env.grading.verdict import Grade

__all__ = ["grade_expression", "same_expression"]

_MAX_CHARACTERS: Final = 1_000
_START_S: Final = 60.0
_GRACE_S: Final = 2.0
_BARE: Final = re.compile(r"[+-]?[0-9]{1,300}")


def grade_expression(response: str, gold: str, time_limit_s: float = 2.5) -> Grade:
    r"""Grades a response whose answer is a mathematical expression.

    Args:
        response: The final turn.
        gold: The reference, in LaTeX; a single number, expression, tuple, interval or set.
        time_limit_s: Seconds on the clock for one comparison. An answer that takes longer is incorrect.

    Raises:
        ConfigError: Math-Verify is not installed.
        DataError: ``gold`` is empty or longer than 1,000 characters.

    Example:
        >>> grade_expression(r"So it is \boxed{\tfrac{1}{2}}.", "0.5")
        Grade(verdict='correct', extracted='\\tfrac{1}{2}')
        >>> grade_expression(r"\boxed{0.333333}", r"\frac{1}{3}").verdict
        'incorrect'
    """
    if not gold.strip() or len(gold) > _MAX_CHARACTERS:
        raise DataError(f"the reference answer must be 1 to {_MAX_CHARACTERS} characters, got {gold[:80]!r}")
    visible = without_thinking(response)
    declared = (boxes(visible)[-1:] or answer_lines(visible)[-1:] or [""])[0]
    if not declared.strip():
        return Grade("no_answer")
    if len(declared) > _MAX_CHARACTERS:
        return Grade("incorrect", declared[:_MAX_CHARACTERS])
    try:
        equal = same_expression(declared, gold, time_limit_s)
    except InfrastructureError:
        return Grade("infrastructure_error", declared)
    return Grade("correct" if equal else "incorrect", declared)


def same_expression(answer: str, gold: str, time_limit_s: float = 2.5) -> bool:
    """Whether two expressions in LaTeX are equal; ``False`` where that cannot be found out within the limits.

    Raises:
        ConfigError: Math-Verify is not installed.
        InfrastructureError: The process that compares does not start.
    """
    left, right = peel(answer), peel(gold)
    if left == right:
        return bool(left)
    if _BARE.fullmatch(left) and _BARE.fullmatch(right):
        return int(left) == int(right)
    return _worker.same(answer, gold, time_limit_s)


class _Worker:
    """The process that compares, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def same(self, answer: str, gold: str, time_limit_s: float) -> bool:
        with self._lock:
            process = self._living()
            assert process.stdin is not None
            request = json.dumps({"answer": answer, "gold": gold, "time_limit_s": time_limit_s}).encode() + b"\n"
            try:
                process.stdin.write(request)
                process.stdin.flush()
                reply = _read_line(process, time_limit_s + _GRACE_S)
            except OSError:
                reply = None
            if reply is None:
                self.close()
                return False
            return reply == b"true\n"

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # With its fork, which ends by itself where the process did.
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def forget(self) -> None:
        """In a forked child: the process is the parent's."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # Nothing to wait for here.
        self._process = None
        self._owner = os.getpid()

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        if find_spec("math_verify") is None:
            raise ConfigError("comparing expressions needs math-verify: pip install 'cleaner-env[math]'")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "cleaner_env.grading.expression_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if _read_line(self._process, _START_S) != b"ready\n":
            self.close()
            raise InfrastructureError("the process that compares expressions does not start")
        return self._process


def _read_line(process: subprocess.Popen[bytes], limit_s: float) -> bytes | None:
    """Reads one line, ``None`` where there is none in time."""
    assert process.stdout is not None
    deadline = time.monotonic() + limit_s
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            return None
        data = os.read(process.stdout.fileno(), 4096)
        if not data:
            return None
        line += data
    return line


_worker = _Worker()
atexit.register(_worker.close)
os.register_at_fork(after_in_child=_worker.forget)
