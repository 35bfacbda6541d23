"""One batch for callers in several threads: rows join while others are being sampled, and a waiting caller drives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from cleaner_env.agents.decoding import DecodingBatch, Row
from cleaner_env.agents.engine import Sampling

__all__ = ["SharedBatch"]

_ENTERING_SHARE: Final = 0.25
"""Taking rows in copies the cache, so those that wait enter once they are this many for each that is in the batch..."""
_PATIENCE: Final = 8
"""... or after this many tokens."""


@dataclass(eq=False)
class _Call:
    """Rows of one caller, which waits until all are finished.

    Attributes:
        waiting: Those that are not in the batch yet.
        woken: Set when they are finished, or when this caller is to drive the batch.
        error: What ended them.
    """

    rows: Sequence[Row]
    sampling: Sampling
    waiting: list[Row] = field(init=False)
    woken: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.waiting = list(self.rows)

    @property
    def done(self) -> bool:
        return self.error is not None or all(row.finish_reason is not None for row in self.rows)


class SharedBatch:
    """Samples the rows of all callers together.

    There is no thread of its own: the first caller drives the batch, token by token, until its own rows are finished, and
    then leaves that to the next one. With one caller, what happens depends on its rows alone. Rows that are sampled
    otherwise than those in the batch wait until it is empty.

    Args:
        make_batch: Makes an empty batch for a kind of sampling.
        size: Most rows in the batch.
        driving: Entered by each caller for as long as it drives the batch.
    """

    def __init__(
        self,
        make_batch: Callable[[Sampling], DecodingBatch],
        size: int,
        driving: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._make_batch = make_batch
        self._size = size
        self._driving = driving
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._driven = False
        self._batch: DecodingBatch | None = None
        self._sampling: Sampling | None = None
        self._steps_waited = 0

    @property
    def in_use(self) -> bool:
        """Whether rows are being sampled."""
        return self._driven

    def run(self, rows: Sequence[Row], sampling: Sampling) -> None:
        """Samples rows to their end.

        Raises:
            BaseException: Whatever the batch raised while these rows were in it or waited for it.
        """
        call = _Call(rows, sampling)
        if call.done:
            return
        with self._lock:
            self._calls.append(call)
            drives = not self._driven
            self._driven = True
        if not drives:
            self._wait(call)
        if not call.done:
            self._drive(call)
        if call.error is not None:
            raise call.error

    def _wait(self, call: _Call) -> None:
        try:
            call.woken.wait()
        except BaseException:  # Ctrl-C reaches the main thread: the others go on
            with self._lock:
                if call in self._calls:
                    self._hand_over(call, drove=call.woken.is_set())
            raise

    def _drive(self, call: _Call) -> None:
        try:
            with self._driving():
                while not call.done:
                    if self._filled_batch().step():
                        self._wake_done(call)
        except BaseException as error:
            self._fail(error)
            return
        with self._lock:
            self._hand_over(call, drove=True)

    def _hand_over(self, call: _Call, drove: bool) -> None:
        self._calls.remove(call)
        if drove:
            self._driven = bool(self._calls)
            if self._calls:
                self._calls[0].woken.set()

    def _filled_batch(self) -> DecodingBatch:
        """Returns the batch, with those that wait taken in where it is time."""
        with self._lock:
            batch = self._batch
            if batch is None or (len(batch) == 0 and self._calls[0].sampling != self._sampling):
                self._sampling = self._calls[0].sampling
                batch = self._batch = self._make_batch(self._sampling)
            # While the oldest call waits for another kind of sampling, the batch runs empty.
            calls = [call for call in self._calls if call.sampling == self._sampling == self._calls[0].sampling]
            waiting = [(call, row) for call in calls for row in call.waiting]
            entering = min(len(waiting), self._size - len(batch))
            impatient = self._steps_waited >= _PATIENCE or entering >= _ENTERING_SHARE * len(batch)
            if entering <= 0 or (len(batch) and not (batch.can_grow and impatient)):
                self._steps_waited += bool(waiting)
                return batch
            # Those with most to say before them come first: short ones fill the places that become free.
            chosen = sorted(waiting, key=lambda pair: -len(pair[1].prompt))[:entering]
            for call, row in chosen:
                call.waiting.remove(row)
            self._steps_waited = 0
        batch.admit([row for _, row in chosen])
        return batch

    def _wake_done(self, driver: _Call) -> None:
        with self._lock:
            for call in [call for call in self._calls if call.done and call is not driver]:
                self._calls.remove(call)
                call.woken.set()

    def _fail(self, error: BaseException) -> None:
        """Ends every call: what the batch held is lost."""
        with self._lock:
            calls, self._calls = self._calls, []
            self._batch, self._driven = None, False
            for call in calls:
                call.error = error
                call.woken.set()
