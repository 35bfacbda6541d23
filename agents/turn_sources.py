"""Where the turns of concurrent episodes come from: as each asks for one, or all together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cleaner_env.agents.engine import Engine, Sampling
from cleaner_env.conversation import Completion

__all__ = ["FreeTurns", "LockstepTurns", "NotPlayingError", "TurnSource"]


class NotPlayingError(Exception):
    """An episode asks for a turn that is none of those that are being played (any more)."""


class TurnSource(Protocol):
    """Samples turns for episodes that run in threads of their own. Episodes are known by number."""

    def enter(self, episode: int) -> None:
        """An episode begins."""

    def leave(self, episode: int) -> None:
        """An episode is over, or given up. May be called twice, and by any thread."""

    def turn(self, episode: int, prompt: Sequence[int], generator: np.random.Generator) -> Completion:
        """Waits for the next turn of an episode.

        Raises:
            NotPlayingError: The episode has left.
        """

    def close(self) -> None:
        """Lets all episodes leave."""


class FreeTurns:
    """Each episode gets its turn as soon as it can be had: the fastest way.

    What is sampled next to what depends on how long tools take, and so do the last bits of log-probabilities.
    """

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._playing: set[int] = set()

    def enter(self, episode: int) -> None:
        """See `TurnSource.enter`."""
        self._playing.add(episode)

    def leave(self, episode: int) -> None:
        """See `TurnSource.leave`."""
        self._playing.discard(episode)

    def turn(self, episode: int, prompt: Sequence[int], generator: np.random.Generator) -> Completion:
        """See `TurnSource.turn`."""
        if episode in self._playing:
            (turn,) = self._engine.generate([prompt], self._sampling, [generator])
            if episode in self._playing:
                return turn
        raise NotPlayingError

    def close(self) -> None:
        """See `TurnSource.close`."""
        self._playing.clear()


@dataclass(frozen=True)
class _Question:
    prompt: Sequence[int]
    generator: np.random.Generator
    answer: Future[Completion] = field(default_factory=Future)


class LockstepTurns:
    """Once all episodes that are being played wait for a turn, the engine is asked for all of these in one call.

    The calls, and so all that is sampled, then depend on the episodes alone and not on how long anything takes.
    """

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._lock = threading.Lock()
        self._playing: set[int] = set()
        self._questions: dict[int, _Question] = {}

    def enter(self, episode: int) -> None:
        """See `TurnSource.enter`."""
        with self._lock:
            self._playing.add(episode)

    def leave(self, episode: int) -> None:
        """See `TurnSource.leave`."""
        with self._lock:
            self._playing.discard(episode)
            question = self._questions.pop(episode, None)
            complete = self._take_if_complete()
        if question is not None:
            question.answer.cancel()
        self._answer(complete)

    def turn(self, episode: int, prompt: Sequence[int], generator: np.random.Generator) -> Completion:
        """See `TurnSource.turn`."""
        question = _Question(prompt, generator)
        with self._lock:
            if episode not in self._playing:
                raise NotPlayingError
            self._questions[episode] = question
            complete = self._take_if_complete()
        self._answer(complete)
        try:
            return question.answer.result()
        except CancelledError:
            raise NotPlayingError from None

    def close(self) -> None:
        """See `TurnSource.close`."""
        with self._lock:
            self._playing.clear()
            questions, self._questions = self._questions, {}
        for question in questions.values():
            question.answer.cancel()

    def _take_if_complete(self) -> list[_Question]:
        if self._questions.keys() < self._playing:
            return []
        questions, self._questions = self._questions, {}
        return [questions[episode] for episode in sorted(questions)]

    def _answer(self, questions: Sequence[_Question]) -> None:
        """Asks the engine, in the thread of whoever came last."""
        if not questions:
            return
        prompts, generators = [q.prompt for q in questions], [q.generator for q in questions]
        try:
            turns = self._engine.generate(prompts, self._sampling, generators)
        except BaseException as error:
            for question in questions:
                question.answer.set_exception(error)
            return
        for question, turn in zip(questions, turns, strict=True):
            question.answer.set_result(turn)
