"""Gradient steps on batches of scored episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cleaner_env.agents.grpo_config import LearnerConfig
from cleaner_env.agents.loss import grpo_loss
from cleaner_env.agents.scoring import masked_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Learner", "TrainingRow"]


@dataclass(frozen=True)
class TrainingRow:
    """An episode as the learner sees it.

    Attributes:
        token_ids: Its ``n`` tokens.
        action_mask: Which of them the model chose; never the first.
        old_logprobs: ``n`` log-probabilities under the weights and the (purified) context of the rollout; only those of
            action tokens are used.
        advantage: The episode's, the same for all its tokens.
    """

    token_ids: Sequence[int]
    action_mask: Sequence[bool]
    old_logprobs: Sequence[float]
    advantage: float


class Learner:
    """Holds a model and its optimiser.

    Args:
        model: A causal language model; it is changed in place.
        config: How it is updated.
        temperature: The sampling temperature, by which logits are divided here as well.
    """

    def __init__(self, model: PreTrainedModel, config: LearnerConfig, temperature: float = 1.0) -> None:
        self.model = model
        self.config = config
        self.temperature = temperature
        self.updates = 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.95)
        )

    def update(self, rows: Sequence[TrainingRow], rng: np.random.Generator) -> dict[str, float]:
        """Takes the updates of one batch of episodes.

        Args:
            rows: The episodes; those with an advantage of 0 count in the token mean but are not computed.
            rng: Divides the rows among minibatches.

        Returns:
            Means over the updates: ``loss``, ``grad_norm``, and what the loss reports, as means over the tokens computed.
        """
        order = rng.permutation(len(rows))
        parts = [part for part in np.array_split(order, min(self.config.minibatches, len(rows))) if len(part)]
        collected: dict[str, list[float]] = defaultdict(list)
        for part in parts:
            for name, value in self._update([rows[index] for index in part]).items():
                collected[name].append(value)
        return {name: float(np.mean(values)) for name, values in collected.items()}

    def _update(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        action_tokens = sum(sum(row.action_mask) for row in rows)
        telling = [row for row in rows if row.advantage != 0 and any(row.action_mask)]
        if not telling:
            return {"loss": 0.0, "grad_norm": 0.0}
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * min(1.0, (self.updates + 1) / max(1, self.config.warmup_steps))
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = defaultdict(float)
        for batch in _microbatches(telling, self.config.microbatch_tokens):
            for name, value in self._accumulate(batch, action_tokens).items():
                totals[name] += value
        # The loss is a mean over all action tokens, what it reports over those that it saw.
        seen = action_tokens / sum(sum(row.action_mask) for row in telling)
        reported = {name: total if name == "loss" else total * seen for name, total in totals.items()}
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        return {**reported, "grad_norm": float(norm)}

    def _accumulate(self, rows: Sequence[TrainingRow], action_tokens: int) -> dict[str, float]:
        ids, mask, old, advantages = (tensor.to(self.model.device) for tensor in _padded(rows))
        logprobs = masked_logprobs(self.model, ids, mask, self.temperature)
        loss, metrics = grpo_loss(logprobs, old[mask], advantages[mask], action_tokens, self.config.loss)
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": float(loss.detach()), **metrics}

    def state_dict(self) -> dict[str, Any]:
        """What is needed, besides the weights, to go on exactly from here."""
        return {"updates": self.updates, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.updates = int(state["updates"])
        self.optimizer.load_state_dict(dict(state["optimizer"]))


def _microbatches(rows: Sequence[TrainingRow], tokens: int) -> Iterator[list[TrainingRow]]:
    """Groups rows of similar length, at most ``tokens`` wide and high together but at least one row each."""
    batch: list[TrainingRow] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if batch and (len(batch) + 1) * len(row.token_ids) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _padded(rows: Sequence[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns ids, action mask, old log-probabilities and advantages, each of shape (rows, longest row)."""
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
    old, advantages = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for number, row in enumerate(rows):
        width = len(row.token_ids)
        ids[number, :width] = row.token_ids
        mask[number, :width] = row.action_mask
        old[number, :width] = row.old_logprobs
        advantages[number] = row.advantage
    return torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(old), torch.from_numpy(advantages)
