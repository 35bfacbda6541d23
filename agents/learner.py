"""Gradient steps on batches of scored episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cleaner_env.agents.grpo_config import LearnerConfig
from cleaner_env.agents.loss import ActionTokens, grpo_loss, importance_weights, kl_estimates, token_weights
from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.errors import ConfigError
from cleaner_env.extras import optional_packages

with optional_packages("training"):
    import torch
    from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Learner", "TrainingRow", "learning_rate_share"]

_Tag = TypeVar("_Tag")


@dataclass(frozen=True)
class TrainingRow:
    """An episode as the learner sees it.

    Attributes:
        token_ids: Its ``n`` tokens.
        action_mask: Which of them the model chose; never the first.
        old_logprobs: ``n`` log-probabilities under the weights and the (purified) context of the rollout; only those of
            action tokens are used.
        advantage: The episode's, the same for all its tokens, or ``n`` of them.
        grafted: Which tokens were not sampled in the context that they stand in, so that no importance weight is right for
            them; empty for none.
        counted: Whether it is an episode of its own in means over tokens or episodes; if not, it is only added to the sum.
        importance: ``n`` importance weights; ``None`` where all are 1.
    """

    token_ids: Sequence[int]
    action_mask: Sequence[bool]
    old_logprobs: Sequence[float]
    advantage: float | NDArray[np.float32]
    grafted: Sequence[bool] = ()
    counted: bool = True
    importance: Sequence[float] | None = None

    @property
    def action_tokens(self) -> int:
        """How many tokens the model chose."""
        return sum(self.action_mask)


class Learner:
    """Holds a model and its optimiser.

    Args:
        model: A causal language model; it is changed in place.
        config: How it is updated.
        temperature: The sampling temperature, by which logits are divided here as well.
        reference: The model that training began with, for ``config.loss.reference_kl``; not changed.
        total_updates: Updates of the whole run, over which a schedule other than ``"constant"`` runs.

    Raises:
        ConfigError: An option needs what was not given, or what the model cannot do.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        temperature: float = 1.0,
        reference: PreTrainedModel | None = None,
        total_updates: int | None = None,
    ) -> None:
        if config.loss.reference_kl and reference is None:
            raise ConfigError(
                f"loss.reference_kl={config.loss.reference_kl!r} needs a reference model; give one, or set it to 0"
            )
        if config.schedule != "constant" and total_updates is None:
            raise ConfigError(f"schedule={config.schedule!r} needs total_updates, the updates of the whole run")
        self.model = model
        self.config = config
        self.temperature = temperature
        self.reference = reference
        self.total_updates = total_updates
        self.updates = 0
        self._checkpointed = _checkpointed_layers(model) if config.gradient_checkpointing else []
        self.optimizer = torch.optim.AdamW(
            [weight for weight in model.parameters() if weight.requires_grad],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(0.9, 0.95),
        )
        # Does nothing but for float16, whose smallest gradients would otherwise become 0.
        self.scaler = torch.amp.GradScaler(model.device.type, enabled=config.autocast == "float16")

    def update(self, rows: Sequence[TrainingRow], rng: np.random.Generator) -> dict[str, float]:
        """Takes the updates of one batch of episodes.

        Args:
            rows: The episodes; those with an advantage of 0 count in the means of the loss but are not computed, unless
                there is a reference to stay near.
            rng: Divides the rows among minibatches.

        Returns:
            Means over the updates: ``loss``, ``grad_norm``, and what the loss reports, as means over the tokens computed.
        """
        metrics: dict[str, float] = {}
        if self.config.importance.old_logprobs == "learner":
            rows, metrics = self._rescored(rows)
        order = rng.permutation(len(rows))
        collected: dict[str, list[float]] = defaultdict(list)
        for part in np.array_split(order, max(1, min(self.config.minibatches, len(rows)))):
            for name, value in self._update([rows[index] for index in part]).items():
                collected[name].append(value)
        return {name: float(np.mean(values)) for name, values in collected.items()} | metrics

    def _update(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        weights, normaliser = token_weights(
            [row.action_tokens for row in rows], self.config.loss, [row.counted for row in rows]
        )
        telling = [(row, weight) for row, weight in zip(rows, weights, strict=True) if self._tells(row)]
        if not telling:
            return {"loss": 0.0, "grad_norm": 0.0}
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * learning_rate_share(self.updates, self.config, self.total_updates)
        self.optimizer.zero_grad(set_to_none=True)
        loss, sums = 0.0, defaultdict[str, float](float)
        with _checkpointing(self._checkpointed):
            for batch in _microbatches(telling, self.config.microbatch_tokens):
                share, reported = self._accumulate(batch, normaliser)
                loss += share
                for name, value in reported.items():
                    sums[name] += value
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.updates += 1
        seen = sum(row.action_tokens for row, _ in telling)
        return {"loss": loss, **{name: value / seen for name, value in sums.items()}, "grad_norm": float(norm)}

    def _tells(self, row: TrainingRow) -> bool:
        return row.action_tokens > 0 and (bool(np.any(row.advantage)) or self.config.loss.reference_kl > 0)

    def _accumulate(self, batch: Sequence[tuple[TrainingRow, float]], normaliser: float) -> tuple[float, dict[str, float]]:
        rows = [row for row, _ in batch]
        ids, mask = self._inputs(rows)
        logprobs = self._logprobs(self.model, ids, mask)
        tokens = ActionTokens(
            lengths=mask.sum(1),
            old_logprobs=self._floats(row.old_logprobs for row in rows)[mask],
            advantages=self._floats(_per_token(row, row.advantage) for row in rows)[mask],
            weights=self._floats(_per_token(row, weight) for row, weight in batch)[mask],
            importance=self._importance(rows, mask),
            reference_logprobs=self._reference_logprobs(ids, mask),
        )
        loss, sums = grpo_loss(logprobs, tokens, normaliser, self.config.loss)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), sums

    def _rescored(self, rows: Sequence[TrainingRow]) -> tuple[list[TrainingRow], dict[str, float]]:
        """Returns the rows with log-probabilities of the learner's own, weighted where the rollout's were others.

        Also returned is the estimated divergence ``rollout_kl`` of the rollout's policy from the learner's, per token.
        """
        config = self.config.importance
        rescored, divergence, compared = list(rows), 0.0, 0
        telling = [(row, number) for number, row in enumerate(rows) if self._tells(row)]
        for batch in _microbatches(telling, self.config.microbatch_tokens):
            ids, mask = self._inputs([row for row, _ in batch])
            with torch.no_grad():
                own = self._logprobs(self.model, ids, mask)
            given = self._floats(row.old_logprobs for row, _ in batch)[mask]
            grafted = self._floats(row.grafted or [False] * len(row.token_ids) for row, _ in batch)[mask] > 0
            lengths = mask.sum(1)
            weights = importance_weights(own, given, ~grafted, lengths, config)
            divergence += float(kl_estimates(given - own)[~grafted].sum())
            compared += int((~grafted).sum())
            parts = lengths.tolist()
            split = torch.split(own.cpu(), parts), torch.split(weights.cpu(), parts)
            for (row, number), old, importance in zip(batch, *split, strict=True):
                rescored[number] = replace(
                    row,
                    old_logprobs=_spread(row, old),
                    importance=None if config.correction == "none" else _spread(row, importance),
                )
        return rescored, {"rollout_kl": divergence / compared if compared else math.nan}

    def _logprobs(self, model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        precision = self.config.autocast
        dtype = getattr(torch, precision) if precision else None
        with torch.autocast(model.device.type, dtype, enabled=precision is not None):
            return masked_logprobs(model, ids, mask, self.temperature)

    def _reference_logprobs(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        if self.reference is None or not self.config.loss.reference_kl:
            return None
        with torch.no_grad():
            return self._logprobs(self.reference, ids, mask)

    def _importance(self, rows: Sequence[TrainingRow], mask: torch.Tensor) -> torch.Tensor | None:
        weights = [row.importance for row in rows if row.importance is not None]
        return self._floats(weights)[mask] if len(weights) == len(rows) else None

    def _inputs(self, rows: Sequence[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and action mask, of shape (rows, longest row)."""
        ids = _padded([row.token_ids for row in rows], np.int64)
        mask = _padded([row.action_mask for row in rows], np.bool_)
        return ids.to(self.model.device), mask.to(self.model.device)

    def _floats(self, rows: Iterable[ArrayLike]) -> torch.Tensor:
        return _padded(list(rows), np.float32).to(self.model.device)

    def state_dict(self) -> dict[str, Any]:
        """What is needed, besides the weights, to go on exactly from here."""
        return {"updates": self.updates, "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.updates = int(state["updates"])
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        if state.get("scaler"):
            self.scaler.load_state_dict(dict(state["scaler"]))


def learning_rate_share(update: int, config: LearnerConfig, total_updates: int | None = None) -> float:
    """Returns what share of the learning rate an update is taken with.

    Args:
        update: Updates taken before.
        config: The schedule, its warm-up and the share at its end.
        total_updates: Updates of the whole run; not needed by the schedule ``"constant"``.

    Example:
        >>> linear = LearnerConfig(warmup_steps=2, schedule="linear")
        >>> [learning_rate_share(update, linear, total_updates=6) for update in range(7)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
        >>> cosine = LearnerConfig(warmup_steps=0, schedule="cosine", final_share=0.1)
        >>> [round(learning_rate_share(update, cosine, total_updates=4), 3) for update in range(5)]
        [1.0, 0.868, 0.55, 0.232, 0.1]
    """
    if update < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if config.schedule == "constant" or total_updates is None:
        return 1.0
    progress = min(1.0, (update - config.warmup_steps) / max(1, total_updates - config.warmup_steps))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.final_share + (1 - config.final_share) * left


def _checkpointed_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[torch.nn.Module] = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} does not support gradient_checkpointing; set it to false")
    return layers


@contextmanager
def _checkpointing(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Keeps the inputs of layers alone and computes the rest again for the backward pass.

    The switch that models have for this works in training mode only, in which they would also drop activations out, so that
    new log-probabilities would not be those of the policy that sampled.
    """
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _microbatches(rows: Sequence[tuple[TrainingRow, _Tag]], tokens: int) -> Iterator[list[tuple[TrainingRow, _Tag]]]:
    """Groups rows of similar length, at most ``tokens`` wide and high together but at least one row each."""
    batch: list[tuple[TrainingRow, _Tag]] = []
    for row, tag in sorted(rows, key=lambda tagged: len(tagged[0].token_ids)):
        if batch and (len(batch) + 1) * len(row.token_ids) > tokens:
            yield batch
            batch = []
        batch.append((row, tag))
    if batch:
        yield batch


def _per_token(row: TrainingRow, value: float | NDArray[np.float32]) -> NDArray[np.float32]:
    return np.broadcast_to(np.asarray(value, np.float32), len(row.token_ids))


def _spread(row: TrainingRow, values: torch.Tensor) -> list[float]:
    """Returns values of action tokens at their places among all tokens of a row, and NaN at all others."""
    remaining = iter(values.tolist())
    return [next(remaining) if chosen else math.nan for chosen in row.action_mask]


def _padded(rows: Sequence[ArrayLike], dtype: DTypeLike) -> torch.Tensor:
    """Returns the rows as one tensor of shape (rows, longest row), with zeros on the right."""
    arrays = [np.asarray(row) for row in rows]
    padded = np.zeros((len(arrays), max(map(len, arrays))), dtype)
    for number, values in enumerate(arrays):
        padded[number, : len(values)] = values
    return torch.from_numpy(padded)
