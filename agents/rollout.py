"""Runs many episodes at once, each in a thread of its own; their turns are sampled together."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, TypeVar

import gymnasium as gym
import numpy as np

from cleaner_env.agents.engine import Engine, Sampling
from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.turn_sources import FreeTurns, LockstepTurns, NotPlayingError, TurnSource
from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv, Transition
from cleaner_env.errors import InfrastructureError, UsageError
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.recording import take_turn
from cleaner_env.wrappers.saar import SAARWrapper

__all__ = ["run_episodes"]

AnyEnv = TypeVar("AnyEnv", bound=gym.Env[Conversation, str])

_LEAVE_S: Final = 10.0
"""How long threads have to end once no more episodes are wanted; longer ones are left to themselves."""


def run_episodes(
    envs: MutableSequence[AnyEnv],
    requests: Sequence[EpisodeRequest],
    engine: Engine,
    renderer: Renderer,
    sampling: Sampling,
    context_tokens: int,
    *,
    deterministic: bool = True,
    retries: int = 2,
    step_s: float = inf,
    on_finished: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Runs episodes, at most ``len(envs)`` at a time.

    An episode that the infrastructure fails is begun again with the same random stream. One whose environment hangs is
    given up, and the others do not wait for it. Either way there is an episode for each request in the end, not a
    `Episode.valid` one where all was in vain.

    Args:
        envs: Environments over the same data set, wrapped in `SAARWrapper` where a request asks for it. One that hangs is
            replaced by a new one like it.
        requests: What to run; a free environment takes the next one.
        engine: Samples the turns.
        renderer: Turns conversations into prompts.
        sampling: How to sample; the stop strings of the environments' tool format are added.
        context_tokens: Tokens that prompt and turn may have together. An episode whose next turn would not fit ends.
        deterministic: Whether episodes wait for one another at each turn, so that what is sampled depends on nothing but
            requests and weights, to the bit. Otherwise each goes on as fast as it can.
        retries: How often an episode is begun again.
        step_s: Seconds that a step of an environment may take; one that takes longer is held to hang.
        on_finished: Called with each episode as it ends.

    Returns:
        One episode per request, in their order.

    Raises:
        ValueError: There is no environment, or one of them cannot purify as asked.
    """
    if not envs:
        raise ValueError("run_episodes needs at least one environment")
    source = (LockstepTurns if deterministic else FreeTurns)(engine, sampling)
    player = _Player(renderer, source, context_tokens - sampling.max_tokens, retries)
    return _Rollout(envs, requests, player, step_s, on_finished).run()


@dataclass
class _Running:
    """An episode under way. What is known of it may be read by another thread at any time.

    Attributes:
        busy_since: When its environment was last given something to do; ``None`` while it waits for a turn.
    """

    env: gym.Env[Conversation, str]
    request: EpisodeRequest
    generator: np.random.Generator
    conversation: Conversation = ()
    info: dict[str, Any] = field(default_factory=dict)
    sampled_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)
    busy_since: float | None = field(default_factory=time.monotonic)

    @property
    def tool_env(self) -> ToolUseEnv:
        env = self.env.unwrapped
        assert isinstance(env, ToolUseEnv)
        return env

    def finished(self, reward: float) -> Episode:
        wrapper = self.env if isinstance(self.env, SAARWrapper) else None
        return Episode(
            request=self.request,
            conversation=self.conversation,
            raw_conversation=wrapper.raw_conversation if wrapper else self.conversation,
            reward=reward,
            info=self.info,
            sampled_tokens=self.sampled_tokens,
            repairs=wrapper.repairs if wrapper else (),
            turns=tuple(self.turns),
            env_id=self.tool_env.spec.id if self.tool_env.spec else None,
            tool_format=self.tool_env.tool_format.name,
            masked_turns=wrapper.masked_turns if wrapper else (),
        )

    def lost(self) -> Episode:
        """Returns what is known of an episode that will not end: nothing that its environment would have to tell."""
        dataset = self.tool_env.dataset
        known = {"problem_id": dataset.problems[self.request.index].id, "dataset": dataset.label, **self.info}
        return Episode(
            request=self.request,
            conversation=self.conversation,
            raw_conversation=self.conversation,
            reward=0.0,
            info={**known, "verdict": "infrastructure_error", "stop_condition": "infrastructure_error"},
            sampled_tokens=self.sampled_tokens,
            turns=tuple(self.turns),
            env_id=self.tool_env.spec.id if self.tool_env.spec else None,
            tool_format=self.tool_env.tool_format.name,
        )


@dataclass(frozen=True)
class _Player:
    """Plays single episodes.

    Attributes:
        renderer: Turns conversations into prompts.
        source: Where turns come from.
        prompt_tokens: Most tokens of a prompt.
        retries: How often an episode that the infrastructure failed is begun again.
    """

    renderer: Renderer
    source: TurnSource
    prompt_tokens: int
    retries: int

    def play(self, number: int, begin: Callable[[], _Running]) -> Episode:
        tries = 0
        while True:
            running = begin()
            tries += 1
            try:
                episode = self._play_once(number, running)
            except InfrastructureError:
                episode = running.lost()
            if episode.valid or tries > self.retries:
                return replace(episode, tries=tries)

    def _play_once(self, number: int, running: _Running) -> Episode:
        request, env = running.request, running.env
        options: dict[str, Any] = {"index": request.index}
        if isinstance(env, SAARWrapper):
            options["saar"] = request.saar
        elif request.saar:
            raise ValueError("a purified episode needs an environment wrapped in SAARWrapper")
        seed = int(running.generator.integers(2**31))
        running.conversation, running.info = env.reset(seed=seed, options=options)
        while True:
            transition = self._take_turn(number, running)
            running.conversation, reward, terminated, truncated, running.info = transition
            if terminated or truncated:
                return running.finished(reward)

    def _take_turn(self, number: int, running: _Running) -> Transition:
        prompt = self.renderer.prompt_ids(running.conversation)
        if len(prompt) > self.prompt_tokens:
            return (running.env if isinstance(running.env, SAARWrapper) else running.tool_env).truncate()
        running.busy_since = None
        turn = self.source.turn(number, prompt, running.generator)
        running.busy_since = time.monotonic()
        running.sampled_tokens += len(turn.token_ids)
        transition, taken = take_turn(running.env, turn)
        running.turns.append(taken)
        return transition


class _Rollout:
    """Episodes in threads, one thread for each environment, and what becomes of them."""

    def __init__(
        self,
        envs: MutableSequence[Any],
        requests: Sequence[EpisodeRequest],
        player: _Player,
        step_s: float,
        on_finished: Callable[[Episode], None] | None,
    ) -> None:
        self._envs = envs
        self._requests = requests
        self._player = player
        self._step_s = step_s
        self._on_finished = on_finished
        self._lock = threading.Lock()
        self._waiting = deque(range(len(requests)))
        self._places: dict[int, int] = {}  # of the episodes under way: their environments
        self._running: dict[int, _Running] = {}
        self._ended: queue.SimpleQueue[tuple[int, Episode | BaseException]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self) -> list[Episode]:
        finished: dict[int, Episode] = {}
        # All that play at first are known before the first of them asks for a turn.
        first = [(place, self._next(place)) for place in range(min(len(self._envs), len(self._requests)))]
        try:
            for place, number in first:
                self._start(place, number)
            while len(finished) < len(self._requests):
                for number, outcome in self._some_ended():
                    if isinstance(outcome, BaseException):
                        raise outcome
                    finished[number] = outcome
                    if self._on_finished:
                        self._on_finished(outcome)
        finally:
            self._stop()
        return [finished[number] for number in range(len(self._requests))]

    def _next(self, place: int) -> int | None:
        """Takes the next request for an environment."""
        with self._lock:
            if not self._waiting:
                return None
            number = self._waiting.popleft()
            self._places[number] = place
        self._player.source.enter(number)
        return number

    def _start(self, place: int, number: int | None) -> None:
        thread = threading.Thread(target=self._work, args=(place, number), name=f"episodes-{place}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, place: int, number: int | None) -> None:
        env = self._envs[place]
        while number is not None:
            try:
                outcome: Episode | BaseException = self._play(number, env)
            except NotPlayingError:
                return
            except BaseException as error:
                outcome = error
            with self._lock:
                if self._places.pop(number, None) is None:
                    return  # given up, and the environment with it
                self._running.pop(number, None)
            following = self._next(place)
            self._ended.put((number, outcome))
            self._player.source.leave(number)  # after the next one has entered: no batch goes without that
            number = following

    def _play(self, number: int, env: gym.Env[Conversation, str]) -> Episode:
        request = self._requests[number]

        def begin() -> _Running:
            running = _Running(env, request, np.random.default_rng(request.stream))
            with self._lock:
                if number not in self._places:
                    raise NotPlayingError
                self._running[number] = running
            return running

        return self._player.play(number, begin)

    def _some_ended(self) -> list[tuple[int, Episode | BaseException]]:
        """Waits until an episode ends, or has to be given up."""
        now = time.monotonic()
        wait = self._step_s - max((now - since for since in self._busy().values()), default=0.0)
        try:
            return [self._ended.get(timeout=None if wait == inf else max(0.0, wait))]
        except queue.Empty:
            now = time.monotonic()
            hanging = [number for number, since in self._busy().items() if now - since >= self._step_s]
            return [lost for number in hanging for lost in self._give_up(number)]

    def _busy(self) -> dict[int, float]:
        """Returns since when environments are at work."""
        with self._lock:
            since = {number: running.busy_since for number, running in self._running.items()}
        return {number: begun for number, begun in since.items() if begun is not None}

    def _give_up(self, number: int) -> list[tuple[int, Episode | BaseException]]:
        """Counts an episode as lost and replaces its environment, which may never come back."""
        with self._lock:
            place = self._places.pop(number, None)
            running = self._running.pop(number, None)
        if place is None or running is None:
            return []  # it ended just now
        hanging = self._envs[place]
        threading.Thread(target=hanging.close, name="closes a hanging environment", daemon=True).start()
        try:
            self._envs[place] = copy.deepcopy(hanging)
        except UsageError:  # it was given an open sandbox, and there is no other like it
            if not self._places:
                raise InfrastructureError(
                    f"no environment is left: all had a step that took longer than {self._step_s:g} s"
                ) from None
        else:
            self._start(place, self._next(place))
        self._player.source.leave(number)
        return [(number, running.lost())]

    def _stop(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._places.clear()
        self._player.source.close()
        deadline = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
