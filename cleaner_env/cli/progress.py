"""The progress of a training run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from math import isnan
from types import TracebackType
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

__all__ = ["TrainingProgress"]

_RECENT: Final = 6
_SHOWN: Final = (
    ("sft/loss", "loss {:.3f}"),
    ("train/reward", "reward {:.2f}"),
    ("train/first_attempt_error", "first-attempt tool errors {:.0%}"),
    ("train/recovered", "recovered {:.0%}"),
    ("speed/tokens_per_s", "{:,.0f} tokens/s"),
    ("eval/success", "evaluation {:.0%}"),
)


class TrainingProgress:
    """Shows how far a run has come and the latest metrics, on standard error.

    A metric that a step does not have keeps its last value, as the evaluation does between two evaluations.

    Args:
        console: Where to write; standard error by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._latest: dict[str, float] = {}
        self._total = 0
        self._times: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def start(self, total: int, done: int = 0, activity: str = "training") -> None:
        """Begins ``total`` steps of an activity, of which an interrupted run took ``done``."""
        self.stop()
        self._latest = {}
        self._total = total
        self._times.clear()
        self._times.append((time.monotonic(), done))
        if self._console.is_terminal:
            columns = (TextColumn(activity), BarColumn(bar_width=None), MofNCompleteColumn())
            self._bar = Progress(*columns, console=self._console, expand=True)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._live = Live(self._screen(), console=self._console, refresh_per_second=4)
            self._live.start()

    def update(self, step_metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a step, whose number is under ``"step"``; NaN stands for what could not be measured."""
        done = int(step_metrics["step"])
        self._times.append((time.monotonic(), done))
        self._latest |= {name: value for name, value in step_metrics.items() if not isnan(value)}
        if self._live is not None:
            self._bar.update(self._task, completed=done)
            self._live.update(self._screen())
        else:
            self._print(f"step {done}/{self._total}  {self._status()}")

    def message(self, text: str) -> None:
        """Prints a line that stays, above the bar."""
        self._print(text)

    def stop(self) -> None:
        """Ends the display. May be called twice."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _screen(self) -> Group:
        return Group(self._bar, Text(self._status()))

    def _status(self) -> str:
        shown = [form.format(self._latest[name]) for name, form in _SHOWN if name in self._latest]
        return "  ".join([*shown, f"left {self._time_left()}"])

    def _time_left(self) -> str:
        """Goes by the latest steps: the first ones are slow, and what else the machine does changes."""
        (began, done_before), (now, done) = self._times[0], self._times[-1]
        if done == done_before:
            return "-:--"
        seconds = round((now - began) / (done - done_before) * (self._total - done))
        hours, rest = divmod(seconds, 3600)
        return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
