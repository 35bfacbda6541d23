"""Evaluation: plays the problems of an environment in order and sums up how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import gymnasium as gym
import numpy as np

import cleaner_env  # noqa: F401 - registers the environments
from cleaner_env.agents.engine import Engine, Sampling
from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import run_episodes
from cleaner_env.agents.scripted import Policy
from cleaner_env.agents.summary import Summary, summarise
from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import ConfigError
from cleaner_env.wrappers.recording import take_turn
from cleaner_env.wrappers.saar import SAARWrapper

__all__ = ["DEFAULT_EPISODES", "Evaluation", "LanguageModel", "evaluate", "make_env", "make_purified_env"]

DEFAULT_EPISODES: Final = 200
"""Episodes of an evaluation whose data set has more than `WHOLE_UP_TO` problems, where no number was given."""
WHOLE_UP_TO: Final = 2_000


@dataclass(frozen=True)
class LanguageModel:
    """A model as a player.

    Attributes:
        engine: Runs the model.
        renderer: Turns conversations into its prompts.
        sampling: How turns are sampled; the stop strings of the environment's tool format are added.
        context_tokens: Tokens that a prompt and a turn may have together.
        parallel_episodes: Episodes played at a time. It changes the speed, and no outcome.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    context_tokens: int = 4096
    parallel_episodes: int = 16

    def __post_init__(self) -> None:
        if self.parallel_episodes < 1:
            raise ConfigError(f"parallel_episodes must be at least 1, got {self.parallel_episodes!r}")
        if self.context_tokens <= self.sampling.max_tokens:
            raise ConfigError(
                f"context_tokens must exceed the {self.sampling.max_tokens} tokens of a turn, got {self.context_tokens!r}"
            )


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        env_id: The environment.
        dataset: Name and short fingerprint of the data set.
        split: The split of it that was asked for; ``None`` where its default was played.
        problems: Problems in the data set.
        saar: Whether failed calls were purified.
        seed: The seed of everything random.
        summary: The numbers.
        episodes: The episodes, in the order of the problems.
    """

    env_id: str
    dataset: str
    split: str | None
    problems: int
    saar: bool
    seed: int
    summary: Summary
    episodes: tuple[Episode, ...] = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """Share of right answers among the episodes that the infrastructure did not fail."""
        return self.summary.success

    def as_dict(self) -> dict[str, Any]:
        """Returns all but the episodes, as plain JSON values."""
        head = {name: getattr(self, name) for name in ("env_id", "dataset", "split", "problems", "saar", "seed")}
        numbers = asdict(self.summary)
        return {**head, "accuracy": numbers.pop("success"), **numbers}


def evaluate(
    env_id: str,
    player: Policy | LanguageModel,
    *,
    episodes: int | None = None,
    seed: int = 0,
    saar: bool = False,
    env_options: Mapping[str, Any] | None = None,
    saar_options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Plays the problems of a data set in order.

    Args:
        env_id: A registered environment.
        player: A scripted policy, or a model.
        episodes: How many to play. More than there are problems begins again at the first. By default every problem once,
            or the first 200 of a data set with more than 2,000.
        seed: Seeds everything random: equal seeds give equal episodes.
        saar: Whether failed calls are purified. What a model has learned shows with it off, so off is the default.
        env_options: Keyword arguments for ``gym.make``, such as ``dataset`` and ``tool_format``.
        saar_options: Keyword arguments for `SAARWrapper`.

    Raises:
        ConfigError: An option is wrong, or the environment is not registered.
        DataError: The data set cannot be loaded.
        InfrastructureError: No sandbox can be started. Failures during an episode are counted in the summary instead.

    Example:
        >>> from cleaner_env.agents.scripted import OraclePolicy
        >>> evaluation = evaluate("CleanerArithmetic-v0", OraclePolicy(), episodes=5)
        >>> evaluation.accuracy, evaluation.summary.turns
        (1.0, 1.0)
    """
    if episodes is not None and episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes!r}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, got {seed!r}")
    parallel = player.parallel_episodes if isinstance(player, LanguageModel) else 1
    envs = [make_env(env_id, saar, env_options, saar_options)]
    try:
        # A backend that does not work at all says why here, and only once.
        _tool_env(envs[0]).sandbox.open().close()
        dataset = _tool_env(envs[0]).dataset
        problems = len(dataset.problems)
        if episodes is None:
            episodes = problems if problems <= WHOLE_UP_TO else DEFAULT_EPISODES
        requests = [EpisodeRequest(i % problems, (seed, i), i % problems, saar) for i in range(episodes)]
        envs += [make_env(env_id, saar, env_options, saar_options) for _ in range(min(parallel, episodes) - 1)]
        if isinstance(player, LanguageModel):
            stop = (*player.sampling.stop, *_tool_env(envs[0]).tool_format.stop)
            sampling = replace(player.sampling, stop=stop)
            played = run_episodes(envs, requests, player.engine, player.renderer, sampling, player.context_tokens)
        else:
            played = list(_play(envs[0], requests, player))
    finally:
        for env in envs:
            env.close()
    split = (env_options or {}).get("split")
    return Evaluation(env_id, dataset.label, split, problems, saar, seed, summarise(played), tuple(played))


def make_env(
    env_id: str,
    saar: bool,
    env_options: Mapping[str, Any] | None = None,
    saar_options: Mapping[str, Any] | None = None,
) -> gym.Env[Conversation, str]:
    """Makes an environment for evaluation, wrapped in `SAARWrapper` where asked for.

    Raises:
        ConfigError: The environment is not registered, or an option is unknown or wrong.
    """
    try:
        # The checker warns of faults in environments; these have their own tests, and it costs time.
        env: gym.Env[Conversation, str] = gym.make(env_id, disable_env_checker=True, **(env_options or {}))
    except (gym.error.Error, ModuleNotFoundError) as error:  # an id may name a module to import: "package:Id-v0"
        known = ", ".join(sorted(name for name in gym.registry if name.startswith("Cleaner")))
        raise ConfigError(f"cannot make the environment {env_id!r}: {error}; this package has {known}") from None
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"{env_id} has no such option: {error}") from None
    if not saar:
        return env
    try:
        return SAARWrapper(env, **(saar_options or {}))
    except ConfigError:
        env.close()
        raise


def make_purified_env(env_id: str, env_options: Mapping[str, Any], saar_options: Mapping[str, Any]) -> SAARWrapper:
    """Makes an environment in `SAARWrapper`; errors are those of `make_env`."""
    env = make_env(env_id, True, env_options, saar_options)
    assert isinstance(env, SAARWrapper)
    return env


def _play(env: gym.Env[Conversation, str], requests: Sequence[EpisodeRequest], policy: Policy) -> Iterator[Episode]:
    """Plays episodes with a scripted policy, one after the other."""
    for request in requests:
        rng = np.random.default_rng(request.stream)
        options: dict[str, Any] = {"index": request.index}
        if isinstance(env, SAARWrapper):
            options["saar"] = request.saar
        conversation, info = env.reset(seed=int(rng.integers(2**31)), options=options)
        policy.begin(_tool_env(env), rng)
        over, reward, turns = False, 0.0, []
        while not over:
            (conversation, reward, terminated, truncated, info), turn = take_turn(env, policy.act(conversation))
            over = terminated or truncated
            turns.append(turn)
        raw = env.raw_conversation if isinstance(env, SAARWrapper) else conversation
        repairs = env.repairs if isinstance(env, SAARWrapper) else ()
        tool_format = _tool_env(env).tool_format.name
        env_id = env.unwrapped.spec.id if env.unwrapped.spec else None
        yield Episode(request, conversation, raw, reward, info, 0, repairs, tuple(turns), env_id, tool_format)


def _tool_env(env: gym.Env[Conversation, str]) -> ToolUseEnv:
    inner = env.unwrapped
    if not isinstance(inner, ToolUseEnv):
        raise ConfigError(f"{env} is no tool-use environment of this package")
    return inner
