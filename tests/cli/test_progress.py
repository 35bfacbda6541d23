from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cleaner_env.cli.progress import TrainingProgress

METRICS = {
    "step": 1,
    "train/reward": 0.314,
    "train/first_attempt_error": 0.62,
    "train/recovered": 0.7,
    "speed/tokens_per_s": 1203.4,
    "eval/success": 0.4,
    "loss/policy": 9.0,
}


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=120, legacy_windows=False), stream


def test_plain_lines_where_there_is_no_terminal() -> None:
    target, stream = console(terminal=False)
    with TrainingProgress(target) as progress:
        progress.start(4)
        progress.message("run folder: runs/[first]")
        progress.update({"step": 0, "eval/success": 0.25, "train/reward": float("nan")})
        progress.update(METRICS)
        progress.update({"step": 2, "train/reward": 0.5, "train/recovered": float("nan")})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run folder: runs/[first]"
    assert lines[1] == "step 0/4  evaluation 25%  left -:--"
    shown = "reward {}  first-attempt tool errors 62%  recovered 70%  1,203 tokens/s  evaluation 40%  left "
    assert lines[2].startswith(f"step 1/4  {shown.format('0.31')}")
    assert lines[3].startswith(f"step 2/4  {shown.format('0.50')}")
    assert len(lines) == 4


def test_a_bar_on_a_terminal() -> None:
    target, stream = console(terminal=True)
    progress = TrainingProgress(target)
    progress.start(4)
    progress.update(METRICS)
    progress.message("a line that stays")
    progress.stop()
    progress.stop()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "training" in text
    assert "1/4" in text
    assert "first-attempt tool errors 62%  recovered 70%  1,203 tokens/s  evaluation 40%  left 0:0" in text
    assert "a line that stays" in text
    assert "\x1b[?25h" in stream.getvalue(), "the cursor must come back"


def test_one_activity_after_another() -> None:
    target, stream = console(terminal=False)
    with TrainingProgress(target) as progress:
        progress.start(2, activity="cold start")
        progress.update({"step": 2, "sft/loss": 0.25})
        progress.start(9)
        progress.update({"step": 0, "eval/success": 0.5})
    assert stream.getvalue() == "step 2/2  loss 0.250  left 0:00\nstep 0/9  evaluation 50%  left -:--\n"


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (9.4, "0:28"), (1300, "1:05:00")])
def test_time_left(monkeypatch: pytest.MonkeyPatch, seconds: float, shown: str) -> None:
    target, stream = console(terminal=False)
    progress = TrainingProgress(target)
    now = 100.0
    monkeypatch.setattr("cleaner_env.cli.progress.time.monotonic", lambda: now)
    progress.start(10, done=6)
    now += seconds
    progress.update({"step": 7})
    assert stream.getvalue() == f"step 7/10  left {shown}\n"


def test_time_left_goes_by_the_latest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    target, stream = console(terminal=False)
    progress = TrainingProgress(target)
    times = iter([0.0, 100.0, *(100.0 + step for step in range(1, 8))])
    monkeypatch.setattr("cleaner_env.cli.progress.time.monotonic", lambda: next(times))
    progress.start(20)
    for step in range(1, 9):
        progress.update({"step": step})
    left = [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()]
    assert left[0] == "31:40"
    assert left[-1] == "0:12"
