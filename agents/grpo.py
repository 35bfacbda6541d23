"""GRPO on purified episodes: collect groups of episodes, score them within their group, take a gradient step.

A step reads from top to bottom in `GRPOTrainer.step`. The parts are elsewhere: `run_episodes` collects, `group_advantages`
compares, `training_rows` recomputes what purification moved to another context, `Learner` updates.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from cleaner_env.agents.engine import Engine, Sampling
from cleaner_env.agents.evaluate import make_purified_env
from cleaner_env.agents.grpo_config import (
    EnvironmentConfig,
    EvaluationConfig,
    GRPOConfig,
    LearnerConfig,
    LossConfig,
    RolloutConfig,
    SAARConfig,
)
from cleaner_env.agents.learner import Learner
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import Episode, EpisodeRequest, run_episodes
from cleaner_env.agents.run_folder import RunFolder
from cleaner_env.agents.summary import Summary, summarise
from cleaner_env.agents.training_rows import training_rows
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.config import dump_toml
from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError, InfrastructureError
from cleaner_env.wrappers.saar import SAARWrapper

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "EnvironmentConfig",
    "EvaluationConfig",
    "GRPOConfig",
    "GRPOTrainer",
    "LearnerConfig",
    "LossConfig",
    "Progress",
    "RolloutConfig",
    "SAARConfig",
    "check_environments",
    "problem_indices",
]

_TRAIN, _EVALUATE, _DATA, _SHARE, _MINIBATCHES = range(5)
"""What a random stream is for: its second seed, after the run's."""


class Progress(Protocol):
    """Shows how a run goes."""

    def start(self, total: int, done: int = 0) -> None: ...
    def update(self, metrics: Mapping[str, float]) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


class GRPOTrainer:
    """Trains a model on one environment.

    Args:
        config: The run's options.
        model: The policy to begin with; changed in place.
        tokenizer: Its tokenizer, with a chat template.

    Raises:
        ConfigError: The environment does not exist, or an option does not fit it.

    Example:
        See ``cleaner train --help``; in Python::

            model, tokenizer = load_model("runs/cold-start")
            with GRPOTrainer(GRPOConfig(steps=20), model, tokenizer) as trainer:
                folder = trainer.run()
    """

    def __init__(self, config: GRPOConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        # The engine runs the very model that the learner updates, so that it samples from the new weights at once.
        engine = TransformersEngine(model, tokenizer)
        if engine.context_length is not None and config.rollout.context_tokens > engine.context_length:
            raise ConfigError(
                f"rollout.context_tokens must be at most the model's {engine.context_length}, "
                f"got {config.rollout.context_tokens!r}"
            )
        self.engine: Engine = engine
        self.learner = Learner(model, config.learner, config.rollout.temperature)
        self.steps_done = 0
        batch = config.rollout.problems * config.rollout.group_size
        self._train_envs = _make_envs(config, config.env.train_split, min(config.rollout.concurrency, batch))
        self._eval_envs = _make_envs(
            config, config.env.eval_split, min(config.rollout.concurrency, config.evaluation.episodes)
        )
        self._sampling = Sampling(
            max_tokens=config.rollout.turn_tokens,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            stop=self._train_envs[0].tool_env.tool_format.stop,
        )

    def run(self, progress: Progress | None = None, resumed: RunFolder | None = None) -> Path:
        """Trains to the last step, or until interrupted.

        The first Ctrl-C lets the step under way end; the run then stops with a checkpoint. The second stops at once.

        Args:
            progress: Shows how the run goes.
            resumed: The folder of an interrupted run to go on with, where `restore` was given its latest checkpoint; a new
                folder by default.

        Returns:
            The run folder.

        Raises:
            ConfigError: The run folder cannot be made, or all steps are taken already.
            InfrastructureError: Every episode of a step was lost to a failing sandbox.
        """
        config = self.config
        if self.steps_done >= config.steps:
            raise ConfigError(
                f"all steps are taken already, {self.steps_done}; give more, such as steps={2 * config.steps}"
            )
        folder = resumed or RunFolder.create(config.runs, dump_toml(config), config.name)
        with folder, _stop_on_interrupt(progress) as stop:
            if progress:
                progress.message(f"run folder: {folder.path}")
                progress.start(config.steps, self.steps_done)
            try:
                if self.steps_done == 0:
                    self._log(folder, self.evaluate(folder), progress)
                last = False
                while not last:
                    metrics = self.step(folder)
                    last = self.steps_done == config.steps or stop.is_set()
                    if last or self.steps_done % config.evaluation.every == 0:
                        metrics |= self.evaluate(folder)
                    self._log(folder, metrics, progress)
                    if last or self.steps_done % config.save_every == 0:
                        self.save(folder)
                        folder.draw_curves()
            finally:
                if progress:
                    progress.stop()
            return folder.path

    def step(self, folder: RunFolder | None = None) -> dict[str, float]:
        """Collects one batch of groups and learns from it.

        Returns:
            What happened, by metric name.
        """
        step = self.steps_done
        began = time.perf_counter()
        episodes = self._run(self._train_envs, self._train_requests(step))
        collected = time.perf_counter()
        valid = [episode for episode in episodes if episode.valid]
        rows, grafts = training_rows(valid, self.engine, self.renderer, self.config.rollout.temperature)
        losses = self.learner.update(rows, self._stream(_MINIBATCHES, step))
        learned = time.perf_counter()
        self.steps_done += 1
        if folder is not None:
            folder.write_episodes(self.steps_done, episodes)
        return {
            **_training_metrics(episodes),
            **grafts,
            **{f"loss/{name}": value for name, value in losses.items()},
            "speed/rollout_s": collected - began,
            "speed/learn_s": learned - collected,
            "speed/tokens_per_s": sum(episode.sampled_tokens for episode in episodes) / (collected - began),
        }

    def evaluate(self, folder: RunFolder | None = None) -> dict[str, float]:
        """Measures the policy with SAAR off, on the first problems of the evaluation split."""
        problems = len(self._eval_envs[0].tool_env.dataset.problems)
        requests = [
            EpisodeRequest(index % problems, (self.config.seed, _EVALUATE, index), group=index)
            for index in range(self.config.evaluation.episodes)
        ]
        episodes = self._run(self._eval_envs, requests)
        if folder is not None:
            folder.write_episodes(self.steps_done, episodes, phase="eval")
        return _named("eval", summarise(episodes))

    def save(self, folder: RunFolder) -> Path:
        """Writes a checkpoint: the model as an ordinary directory, and all that is needed to go on from it."""
        state = {"steps_done": self.steps_done, "learner": self.learner.state_dict()}
        return folder.save_checkpoint(self.steps_done, self.learner.model, self.tokenizer, state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint of `save`, whose model this trainer was made with.

        On a CPU, with as many threads, what follows is to the bit what would have followed without the interruption: every
        random choice comes from streams that follow from the seed, the step and the episode.

        Args:
            state: What `load_trainer_state` read.
        """
        self.steps_done = int(state["steps_done"])
        self.learner.load_state_dict(state["learner"])

    def close(self) -> None:
        """Closes the environments. May be called twice."""
        for env in (*self._train_envs, *self._eval_envs):
            env.close()

    def __enter__(self) -> GRPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, envs: Sequence[gym.Env[Conversation, str]], requests: Sequence[EpisodeRequest]) -> list[Episode]:
        episodes = run_episodes(
            envs, requests, self.engine, self.renderer, self._sampling, self.config.rollout.context_tokens
        )
        if not any(episode.valid for episode in episodes):
            raise InfrastructureError(f"all {len(episodes)} episodes were lost to a failing sandbox; try `cleaner doctor`")
        return episodes

    def _train_requests(self, step: int) -> list[EpisodeRequest]:
        config, saar = self.config.rollout, self.config.saar
        problems = len(self._train_envs[0].tool_env.dataset.problems)
        requests = []
        for group, index in enumerate(problem_indices(self.config.seed, step, config.problems, problems)):
            rng = self._stream(_SHARE, step, group)
            purified = _purified_members(saar.share_at(step, self.config.steps), saar.mixing, config.group_size, rng)
            for member in range(config.group_size):
                stream = (self.config.seed, _TRAIN, step, group, member)
                requests.append(EpisodeRequest(index, stream, group, saar=member in purified))
        return requests

    def _stream(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng((self.config.seed, *purpose))

    def _log(self, folder: RunFolder, metrics: Mapping[str, float], progress: Progress | None) -> None:
        folder.log(self.steps_done, metrics)
        if progress:
            progress.update({"step": self.steps_done, **metrics})


def problem_indices(seed: int, step: int, count: int, problems: int) -> list[int]:
    """Returns the problems of a step: all problems in random order, then all again in another, and so on.

    Example:
        >>> sorted(problem_indices(0, 0, 2, 4) + problem_indices(0, 1, 2, 4))
        [0, 1, 2, 3]
    """
    indices = []
    for position in range(step * count, (step + 1) * count):
        epoch, offset = divmod(position, problems)
        indices.append(int(np.random.default_rng((seed, _DATA, epoch)).permutation(problems)[offset]))
    return indices


def _purified_members(share: float, mixing: str, group_size: int, rng: np.random.Generator) -> set[int]:
    """Returns which episodes of a group are purified."""
    if mixing == "episode":
        return set(np.flatnonzero(rng.random(group_size) < share).tolist())
    return set(range(int(np.floor(share * group_size + rng.random()))))


def _training_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    raw = [episode for episode in episodes if not episode.request.saar]
    purified = [episode for episode in episodes if episode.request.saar]
    metrics = _named("train", summarise(episodes))
    for name, part in (("raw", raw), ("purified", purified)):
        if part:
            metrics |= {f"{metric}_{name}": value for metric, value in _named("train", summarise(part)).items()}
    for outcome in ("shallow", "deep", "failed", "abandoned"):
        metrics[f"saar/{outcome}"] = float(sum(repair.outcome == outcome for e in episodes for repair in e.repairs))
    return metrics


def _named(prefix: str, summary: Summary) -> dict[str, float]:
    """Returns a summary as metrics; what could not be measured is NaN."""
    numbers = {
        "success": summary.success,
        "reward": summary.reward,
        "first_attempt_error": summary.first_attempt_error,
        "recovered": summary.recovered,
        "tool_calls": summary.tool_calls,
        "turns": summary.turns,
        "tokens": summary.tokens,
        "infrastructure_errors": summary.infrastructure_errors,
    }
    return {f"{prefix}/{name}": float("nan") if value is None else float(value) for name, value in numbers.items()}


def check_environments(config: GRPOConfig) -> None:
    """Makes one environment for training and one for evaluation and closes them, to find mistakes before costly work.

    Raises:
        ConfigError: The environment does not exist, or an option does not fit it.
        DataError: The data set or a split of it cannot be loaded.
    """
    for split in (config.env.train_split, config.env.eval_split):
        for env in _make_envs(config, split, 1):
            env.close()


def _make_envs(config: GRPOConfig, split: str | None, count: int) -> list[SAARWrapper]:
    options: dict[str, Any] = {"dataset": config.env.dataset, "split": split, "sandbox": config.env.sandbox}
    options |= {
        name: getattr(config.env, name) for name in ("tool_format", "max_turns") if getattr(config.env, name) is not None
    }
    saar = {
        "strategy": config.saar.strategy,
        "similarity_threshold": config.saar.similarity_threshold,
        "max_retries": config.saar.max_retries,
        "rollback_probability": 0.0,
    }
    return [make_purified_env(config.env.id, options, saar) for _ in range(count)]


@contextmanager
def _stop_on_interrupt(progress: Progress | None) -> Iterator[threading.Event]:
    """Turns the first Ctrl-C into an event, and leaves the second to Python."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        if progress:
            progress.message("stopping after this step; press Ctrl-C again to stop at once, without a checkpoint")

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
