"""GRPO on purified episodes: collect groups of episodes, score them within their group, take a gradient step.

A step reads from top to bottom in `GRPOTrainer.step`. The parts are elsewhere: `run_episodes` collects, `training_rows`
compares the episodes of each group and recomputes what purification moved to another context, `Learner` updates.
"""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from cleaner_env.agents.batches import Purpose, random_stream, telling_groups, train_requests
from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.episodes import Episode, EpisodeRequest
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
from cleaner_env.agents.journal import EpisodeJournal
from cleaner_env.agents.learner import Learner
from cleaner_env.agents.lora import adapter_weights, add_lora, load_adapter_weights, merged_weights
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import run_episodes
from cleaner_env.agents.run_folder import RunFolder
from cleaner_env.agents.summary import summarise
from cleaner_env.agents.training_metrics import named_summary, training_metrics
from cleaner_env.agents.training_rows import training_rows
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.config import dump_toml
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
]


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
        reference: The model that the run began with, for ``loss.reference_kl``; by default a copy of ``model`` where that
            is needed. A resumed run has to be given it.

    Raises:
        ConfigError: The environment does not exist, or an option does not fit it.

    Example:
        See ``cleaner train --help``; in Python::

            model, tokenizer = load_model("runs/cold-start")
            with GRPOTrainer(GRPOConfig(steps=20), model, tokenizer) as trainer:
                folder = trainer.run()
    """

    def __init__(
        self,
        config: GRPOConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        if reference is None and config.learner.loss.reference_kl:
            reference = copy.deepcopy(model)
        if config.lora.rank:
            add_lora(model, config.lora, config.seed)
        self.renderer = Renderer(tokenizer)
        # The engine runs the very model that the learner updates, so that it samples from the new weights at once.
        engine = TransformersEngine(model, tokenizer, prefix_cache_mb=config.rollout.prefix_cache_mb)
        if engine.context_length is not None and config.rollout.context_tokens > engine.context_length:
            raise ConfigError(
                f"rollout.context_tokens must be at most the model's {engine.context_length}, "
                f"got {config.rollout.context_tokens!r}"
            )
        self.engine = engine
        updates = config.steps * config.learner.minibatches
        self.learner = Learner(model, config.learner, config.rollout.temperature, reference, updates)
        self.steps_done = 0
        self._batches_done = 0
        self._journal: EpisodeJournal | None = None
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
            folder.track(config.trackers, self.steps_done, config.project, asdict(config))
            self._journal = None if config.deterministic else self._open_journal(folder)
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
        config = self.config
        began = time.perf_counter()
        episodes, chosen = self._collect()
        collected = time.perf_counter()
        rows, scored = training_rows(
            chosen,
            self.engine,
            self.renderer,
            config.rollout.temperature,
            config.advantage,
            context_tokens=config.rollout.context_tokens,
            grafts=config.learner.importance.grafts,
        )
        self.engine.prefixes.clear()  # the learner needs the memory, and its update makes them worthless
        losses = self.learner.update(rows, random_stream(config.seed, Purpose.MINIBATCHES, self.steps_done))
        learned = time.perf_counter()
        self.steps_done += 1
        if folder is not None:
            folder.write_episodes(self.steps_done, episodes)
        return {
            **training_metrics(episodes),
            **scored,
            **{f"loss/{name}": value for name, value in losses.items()},
            "speed/rollout_s": collected - began,
            "speed/learn_s": learned - collected,
            "speed/tokens_per_s": sum(episode.sampled_tokens for episode in episodes) / (collected - began),
        }

    def _collect(self) -> tuple[list[Episode], list[Episode]]:
        """Returns the episodes of a step, and those of them that are learned from."""
        config = self.config.rollout
        share = self.config.saar.share_at(self.steps_done, self.config.steps)
        problems = len(self._train_envs[0].tool_env.dataset.problems)
        episodes: list[Episode] = []
        for number in range(config.max_batches):
            first_group = number * config.problems
            requests = train_requests(self.config, self._batches_done, share, problems, first_group)
            episodes += self._run(self._train_envs, requests)
            self._batches_done += 1
            if config.max_batches == 1:
                return episodes, [episode for episode in episodes if episode.valid]
            telling = list(telling_groups(episodes).values())[: config.problems]
            if len(telling) == config.problems:
                break
        return episodes, [episode for group in telling for episode in group]

    def evaluate(self, folder: RunFolder | None = None) -> dict[str, float]:
        """Measures the policy with SAAR off, on the first problems of the evaluation split."""
        problems = len(self._eval_envs[0].tool_env.dataset.problems)
        requests = [
            EpisodeRequest(index % problems, (self.config.seed, int(Purpose.EVALUATE), index), group=index)
            for index in range(self.config.evaluation.episodes)
        ]
        episodes = self._run(self._eval_envs, requests)
        self.engine.prefixes.clear()  # a run that is resumed here starts without them
        if folder is not None:
            folder.write_episodes(self.steps_done, episodes, phase="eval")
        return named_summary("eval", summarise(episodes))

    def save(self, folder: RunFolder) -> Path:
        """Writes a checkpoint: the model as an ordinary directory, and all that is needed to go on from it."""
        state = {
            "steps_done": self.steps_done,
            "batches_done": self._batches_done,
            "learner": self.learner.state_dict(),
            "adapters": adapter_weights(self.learner.model),
        }
        weights = merged_weights(self.learner.model)
        saved = folder.save_checkpoint(self.steps_done, self.learner.model, self.tokenizer, state, weights)
        if self._journal is not None:
            self._journal.clear()
        if self.config.keep_checkpoints is not None:
            folder.prune_checkpoints(self.config.keep_checkpoints, self.config.best_metric)
        return saved

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint of `save`, whose model this trainer was made with; with adapters, from the first model.

        On a CPU, with as many threads, what follows is to the bit what would have followed without the interruption: every
        random choice comes from streams that follow from the seed, the step and the episode.

        Args:
            state: What `load_trainer_state` read.
        """
        self.steps_done = int(state["steps_done"])
        self._batches_done = int(state["batches_done"])
        load_adapter_weights(self.learner.model, state["adapters"])
        self.learner.load_state_dict(state["learner"])

    def close(self) -> None:
        """Closes the environments. May be called twice."""
        for env in (*self._train_envs, *self._eval_envs):
            env.close()

    def __enter__(self) -> GRPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, envs: list[SAARWrapper], requests: Sequence[EpisodeRequest]) -> list[Episode]:
        """Plays episodes, those excepted that were played before the run was interrupted here."""
        journal, rollout = self._journal, self.config.rollout
        known = {request: journal.find(self.steps_done, request) for request in requests} if journal else {}
        played = run_episodes(
            envs,
            [request for request in requests if known.get(request) is None],
            self.engine,
            self.renderer,
            self._sampling,
            rollout.context_tokens,
            deterministic=self.config.deterministic,
            retries=rollout.retries,
            step_s=rollout.step_s,
            on_finished=partial(journal.add, self.steps_done) if journal else None,
        )
        known |= {episode.request: episode for episode in played}
        episodes = [episode for request in requests if (episode := known[request]) is not None]
        if not any(episode.valid for episode in episodes):
            raise InfrastructureError(f"all {len(episodes)} episodes were lost to a failing sandbox; try `cleaner doctor`")
        return episodes

    def _open_journal(self, folder: RunFolder) -> EpisodeJournal:
        env = self._train_envs[0]
        return EpisodeJournal(folder.path / "journal.jsonl", env.rule, env.tool_env.max_turns)

    def _log(self, folder: RunFolder, metrics: Mapping[str, float], progress: Progress | None) -> None:
        folder.log(self.steps_done, metrics)
        if progress:
            progress.update({"step": self.steps_done, **metrics})


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
