"""Runs many episodes at once: the engine answers all that wait in one batch, the sandboxes work in threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from cleaner_env.agents.engine import Engine, Sampling
from cleaner_env.agents.rendering import Renderer
from cleaner_env.conversation import Completion, Conversation
from cleaner_env.env import ToolUseEnv, Transition
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.recording import take_turn
from cleaner_env.wrappers.records import EpisodeRecord, describe_repair
from cleaner_env.wrappers.saar import Repair, SAARWrapper

__all__ = ["Episode", "EpisodeRequest", "run_episodes"]


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to be run.

    Attributes:
        index: Index of the problem in the environment's data set.
        stream: Seeds everything random in the episode; two requests with equal streams and weights give equal episodes.
        group: Number of the group that it is compared with.
        saar: Whether it is purified; needs environments wrapped in `SAARWrapper` where true.
    """

    index: int
    stream: tuple[int, ...]
    group: int = 0
    saar: bool = False


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        request: What was asked for.
        conversation: The final history; of a purified episode, the purified one.
        raw_conversation: Everything that was said, in order.
        reward: The outcome reward.
        info: The last ``info`` of the environment, with the totals.
        sampled_tokens: Tokens sampled in all, hidden attempts included.
        repairs: What `SAARWrapper` did.
        turns: What was said, and what became of it.
        env_id: The registered environment.
        tool_format: How calls are written.
        masked_turns: Turns of ``conversation`` that are to be left out of the loss, counted among the assistant's.
    """

    request: EpisodeRequest
    conversation: Conversation
    raw_conversation: Conversation
    reward: float
    info: dict[str, Any]
    sampled_tokens: int
    repairs: tuple[Repair, ...] = ()
    turns: tuple[Turn, ...] = ()
    env_id: str | None = None
    tool_format: str | None = None
    masked_turns: tuple[int, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the outcome is the model's own, and not that of a failing sandbox."""
        return bool(self.info["stop_condition"] != "infrastructure_error")

    def as_record(self, labels: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The episode as plain JSON values, in the schema of `cleaner_env.wrappers.records`, with keys of the caller's."""
        said = [message["role"] == "assistant" for message in self.raw_conversation]
        stop = self.info["stop_condition"]
        return EpisodeRecord(
            env_id=self.env_id,
            tool_format=self.tool_format,
            problem_id=self.info["problem_id"],
            dataset=self.info["dataset"],
            stream=self.request.stream,
            purified=self.request.saar,
            start=self.raw_conversation[: said.index(True) if True in said else None],
            turns=self.turns,
            conversation=self.conversation,
            repairs=tuple(map(describe_repair, self.repairs)),
            reward=self.reward,
            terminated=stop == "answered",
            truncated=stop != "answered",
            info=self.info,
            labels={
                **(labels or {}),
                "index": self.request.index,
                "group": self.request.group,
                "sampled_tokens": self.sampled_tokens,
            },
        ).as_json()


@dataclass
class _Running:
    env: gym.Env[Conversation, str]
    request: EpisodeRequest
    conversation: Conversation
    generator: np.random.Generator
    sampled_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)

    @property
    def tool_env(self) -> ToolUseEnv:
        env = self.env.unwrapped
        assert isinstance(env, ToolUseEnv)
        return env


def run_episodes(
    envs: Sequence[gym.Env[Conversation, str]],
    requests: Sequence[EpisodeRequest],
    engine: Engine,
    renderer: Renderer,
    sampling: Sampling,
    context_tokens: int,
) -> list[Episode]:
    """Runs episodes, at most ``len(envs)`` at a time.

    Args:
        envs: Environments over the same data set, wrapped in `SAARWrapper` where a request asks for it.
        requests: What to run; a free environment takes the next one.
        engine: Samples the turns.
        renderer: Turns conversations into prompts.
        sampling: How to sample; the stop strings of the environments' tool format are added.
        context_tokens: Tokens that prompt and turn may have together. An episode whose next turn would not fit ends.

    Returns:
        One episode per request, in their order.
    """
    if not envs:
        raise ValueError("run_episodes needs at least one environment")
    waiting = list(enumerate(requests))[::-1]
    running: dict[int, _Running] = {}
    finished: dict[int, Episode] = {}
    free = list(envs)
    with ThreadPoolExecutor(max_workers=min(len(envs), 32), thread_name_prefix="episode") as threads:
        while waiting or running:
            while free and waiting:
                position, request = waiting.pop()
                running[position] = _start(free.pop(), request)
            prompts = {position: renderer.prompt_ids(episode.conversation) for position, episode in running.items()}
            fitting = [position for position, ids in prompts.items() if len(ids) + sampling.max_tokens <= context_tokens]
            turns = engine.generate(
                [prompts[position] for position in fitting],
                sampling,
                [running[position].generator for position in fitting],
            )
            steps = {
                position: threads.submit(_step, running[position], turn)
                for position, turn in zip(fitting, turns, strict=True)
            }
            for position in list(running):
                episode = steps[position].result() if position in steps else _run_out_of_context(running[position])
                if episode is not None:
                    finished[position] = episode
                    free.append(running.pop(position).env)
    return [finished[position] for position in range(len(requests))]


def _start(env: gym.Env[Conversation, str], request: EpisodeRequest) -> _Running:
    options: dict[str, Any] = {"index": request.index}
    if isinstance(env, SAARWrapper):
        options["saar"] = request.saar
    elif request.saar:
        raise ValueError("a purified episode needs an environment wrapped in SAARWrapper")
    generator = np.random.default_rng(request.stream)
    conversation, _ = env.reset(seed=int(generator.integers(2**31)), options=options)
    return _Running(env, request, conversation, generator)


def _step(episode: _Running, turn: Completion) -> Episode | None:
    """Takes a turn; returns the episode if that ended it."""
    episode.sampled_tokens += len(turn.token_ids)
    transition, taken = take_turn(episode.env, turn)
    episode.turns.append(taken)
    return _after(episode, transition)


def _run_out_of_context(episode: _Running) -> Episode:
    env = episode.env if isinstance(episode.env, SAARWrapper) else episode.tool_env
    finished = _after(episode, env.truncate())
    assert finished is not None
    return finished


def _after(episode: _Running, transition: Transition) -> Episode | None:
    episode.conversation, reward, terminated, truncated, info = transition
    if not (terminated or truncated):
        return None
    wrapper = episode.env if isinstance(episode.env, SAARWrapper) else None
    return Episode(
        request=episode.request,
        conversation=episode.conversation,
        raw_conversation=wrapper.raw_conversation if wrapper else episode.conversation,
        reward=reward,
        info=info,
        sampled_tokens=episode.sampled_tokens,
        repairs=wrapper.repairs if wrapper else (),
        turns=tuple(episode.turns),
        env_id=episode.tool_env.spec.id if episode.tool_env.spec else None,
        tool_format=episode.tool_env.tool_format.name,
        masked_turns=wrapper.masked_turns if wrapper else (),
    )
