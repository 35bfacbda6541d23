"""`RecordEpisodes`: writes every episode of an environment to a file, raw and purified.

The schema is described in `cleaner_env.wrappers.records`. ``cleaner view`` shows such a file, ``cleaner replay``
purifies it anew under other settings.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv, Transition
from cleaner_env.errors import ConfigError
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import (
    RESERVED_KEYS,
    EpisodeRecord,
    append_records,
    check_writable,
    describe_repair,
    plain_json,
)
from cleaner_env.wrappers.saar import SAARWrapper

__all__ = ["RecordEpisodes", "take_turn"]


def take_turn(env: gym.Env[Conversation, str], action: str) -> tuple[Transition, Turn]:
    """Takes a step, and returns the transition along with what was said and what became of it.

    Args:
        env: A `ToolUseEnv`, possibly wrapped.
        action: The assistant's turn.
    """
    observation, reward, terminated, truncated, info = env.step(action)
    transition = observation, float(reward), terminated, truncated, info
    # Where an answer gives a repair up at the end of the budget, `info` still speaks of the call before it.
    if not _tool_env(env).tool_format.parse(action).has_call:
        return transition, Turn(action)
    content = observation[-1]["content"] if observation[-1]["role"] == "tool" else None
    return transition, Turn(action, content, info["tool_status"], info["error_type"])


class RecordEpisodes(gym.Wrapper[Conversation, str, Conversation, str], gym.utils.RecordConstructorArgs):
    """Appends every episode to a JSON Lines file when it ends.

    It goes around `SAARWrapper`, or around a `ToolUseEnv` that is not purified. An episode that ``reset`` or ``close`` cuts
    short is written too, as neither terminated nor truncated, unless it has no turn yet. Lines are appended whole and under
    a lock: environments in several processes may write one file, and a killed process loses the episode under way only.

    Args:
        env: The environment.
        path: The file, made if need be and appended to otherwise. A relative path is taken from the folder that is current
            when the wrapper is made.
        labels: Keys of your own for every line, such as ``{"phase": "eval", "step": 3}``.
        tokens: Whether token ids and log-probabilities of completions are kept. They are several times the text.

    Raises:
        ConfigError: ``path`` cannot be appended to, a label is no JSON or has the name of a key of the schema, or the
            environment has no conversation.

    Example:
        >>> import cleaner_env, tempfile
        >>> from cleaner_env.wrappers.records import read_episodes
        >>> folder = tempfile.TemporaryDirectory()
        >>> env = SAARWrapper(gym.make("CleanerArithmetic-v0"))
        >>> with RecordEpisodes(env, Path(folder.name) / "episodes.jsonl") as env:
        ...     start, info = env.reset(seed=1)
        ...     for code in ("prnt(6 * 7)", "print(6 * 7)"):
        ...         transition = env.step(f"```python\\n{code}\\n```")
        ...     transition = env.step(r"\\boxed{42}")
        >>> (record,) = read_episodes(Path(folder.name) / "episodes.jsonl")
        >>> [turn.tool_status for turn in record.turns], record.repairs[0]["outcome"], len(record.conversation)
        (['error', 'ok', None], 'shallow', 5)
        >>> folder.cleanup()
    """

    def __init__(
        self,
        env: gym.Env[Conversation, str],
        path: str | os.PathLike[str],
        labels: Mapping[str, Any] | None = None,
        tokens: bool = False,
    ) -> None:
        if not isinstance(env, gym.Env) or not isinstance(env.unwrapped, ToolUseEnv):
            raise ConfigError(f"RecordEpisodes needs a ToolUseEnv, possibly wrapped, got {env!r:.200}")
        check_writable(path)
        labels = _checked_labels({} if labels is None else labels)
        gym.utils.RecordConstructorArgs.__init__(self, path=os.fspath(path), labels=labels, tokens=tokens)
        gym.Wrapper.__init__(self, env)
        self._path = Path(path).absolute()
        self._labels = labels
        self._tokens = tokens
        self._saar = _find_saar(env)
        self._seed: int | None = None
        self._turns: list[Turn] = []
        self._rewards = 0.0
        self._latest: Transition | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The environment underneath begins anew when it is copied or unpickled; its episode is this one's to write.
        return {**vars(self), "_latest": None, "_turns": []}

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self._path

    @property
    def tool_env(self) -> ToolUseEnv:
        """The environment underneath."""
        return _tool_env(self)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        """Begins an episode, and writes the one before it where that was not played to its end."""
        record = self._record()
        observation, info = self.env.reset(seed=seed, options=options)
        self._write(record)
        self._seed = seed
        self._start = observation
        self._purified = bool(info.get("saar", {}).get("enabled", False))
        self._turns, self._rewards = [], 0.0
        self._latest = observation, 0.0, False, False, info
        return observation, info

    def step(self, action: str) -> Transition:
        """Takes a turn, and writes the episode where that ends it.

        Raises:
            ResetNeeded: The episode is over, or did not begin with this wrapper's ``reset``.
        """
        self._require_running()
        began = time.perf_counter()
        transition, turn = take_turn(self.env, action)
        self._turns.append(replace(turn, seconds=time.perf_counter() - began))
        return self._after(transition)

    def truncate(self) -> Transition:
        """Ends the episode because the agent's context is full, as `ToolUseEnv.truncate` does, and writes it."""
        self._require_running()
        return self._after((self._saar or self.tool_env).truncate())

    def close(self) -> None:
        """Writes the episode under way and closes the environment. May be called twice."""
        try:
            self._write(self._record())
        finally:
            self.env.close()

    def _require_running(self) -> None:
        if self._latest is None:
            raise ResetNeeded("the episode is over or did not begin here; call reset() of RecordEpisodes")

    def _after(self, transition: Transition) -> Transition:
        self._latest = transition
        self._rewards += transition[1]
        if transition[2] or transition[3]:
            self._write(self._record())
        return transition

    def _record(self) -> EpisodeRecord | None:
        """Returns the episode under way, ``None`` where there is nothing to be written."""
        if self._latest is None or not (self._turns or self._latest[2] or self._latest[3]):
            return None
        conversation, _, terminated, truncated, info = self._latest
        spec = self.tool_env.spec
        return EpisodeRecord(
            env_id=spec.id if spec else None,
            tool_format=self.tool_env.tool_format.name,
            problem_id=info["problem_id"],
            dataset=info["dataset"],
            seed=self._seed,
            purified=self._purified,
            start=self._start,
            turns=tuple(self._turns),
            conversation=conversation,
            repairs=tuple(map(describe_repair, self._saar.repairs)) if self._saar else (),
            reward=self._rewards,
            terminated=terminated,
            truncated=truncated,
            info=info,
            labels=self._labels,
        )

    def _write(self, record: EpisodeRecord | None) -> None:
        self._latest = None
        if record is not None:
            append_records(self._path, [record.as_json(self._tokens)])


def _tool_env(env: gym.Env[Conversation, str]) -> ToolUseEnv:
    inner = env.unwrapped
    assert isinstance(inner, ToolUseEnv)
    return inner


def _find_saar(env: gym.Env[Any, Any]) -> SAARWrapper | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, SAARWrapper):
            return env
        env = env.env
    return None


def _checked_labels(labels: object) -> dict[str, Any]:
    if not isinstance(labels, Mapping):
        raise ConfigError(f'labels must be a mapping such as {{"phase": "eval"}}, got {labels!r:.80}')
    for name in labels:
        if not isinstance(name, str) or name in RESERVED_KEYS:
            raise ConfigError(f"labels need names of their own, got {name!r:.80}, which the schema uses or is no text")
    try:
        checked: dict[str, Any] = json.loads(json.dumps(plain_json(labels), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"labels must be JSON values: {error}") from None
    return checked
