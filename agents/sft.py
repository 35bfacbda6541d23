"""Supervised fine-tuning on tokens chosen by a mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cleaner_env.conversation import Conversation
from cleaner_env.errors import ConfigError
from cleaner_env.extras import optional_packages

with optional_packages("training"):
    import torch
    from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cleaner_env.agents.rendering import Renderer

__all__ = ["SFTConfig", "SFTExample", "SFTProgress", "conversation_example", "sft"]


@dataclass(frozen=True)
class SFTExample:
    """A token sequence and which of its tokens to learn."""

    token_ids: tuple[int, ...]
    learn: tuple[bool, ...]


def conversation_example(conversation: Conversation, renderer: Renderer, learn: Sequence[bool] | None = None) -> SFTExample:
    """Renders a conversation, to learn what the assistant says in it and nothing else.

    Args:
        conversation: Begins with a system or user message.
        renderer: Renders it.
        learn: Which of the assistant's turns to learn, all by default.
    """
    rendered = renderer.render(conversation)
    mask = list(rendered.action_mask)
    for turn, learned in enumerate(learn or ()):
        if not learned:
            span = rendered.turn_span(turn)
            mask[span.start : span.stop] = [False] * len(span)
    return SFTExample(rendered.token_ids, tuple(mask))


@dataclass(frozen=True)
class SFTConfig:
    """Options of `sft`.

    Attributes:
        learning_rate: Peak of a linear warm-up and a cosine decay to a tenth.
        warmup: Share of the steps spent warming up.
        batch_tokens: Most tokens of a batch, padding included.
        weight_decay: AdamW's, on matrices only.
        max_grad_norm: Gradients are scaled down to this norm.
    """

    learning_rate: float = 3e-3
    warmup: float = 0.05
    batch_tokens: int = 8192
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_tokens", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)!r}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup must lie in [0, 1), got {self.warmup!r}")


@dataclass(frozen=True)
class SFTProgress:
    """Where a run stands.

    Attributes:
        step: Optimiser steps done.
        steps: Optimiser steps in all.
        loss: Mean negative log-likelihood of the learned tokens of this step, in nats.
    """

    step: int
    steps: int
    loss: float


def sft(
    model: PreTrainedModel,
    stages: Sequence[Sequence[SFTExample]],
    config: SFTConfig,
    rng: np.random.Generator,
    callback: Callable[[SFTProgress], None] | None = None,
) -> None:
    """Fine-tunes a model in place, one pass over the examples of each stage, under one learning-rate schedule.

    Args:
        model: A causal language model, on its device.
        stages: What to learn, one stage after the other.
        config: Options.
        rng: Orders the examples of a stage.
        callback: Called after each step.

    Raises:
        ConfigError: There are no examples, or one is longer than a batch may be.
    """
    examples = [example for stage in stages for example in stage]
    if not examples:
        raise ConfigError("sft needs at least one example, got none")
    longest = max(len(example.token_ids) for example in examples)
    if longest > config.batch_tokens:
        raise ConfigError(f"an example of {longest} tokens does not fit into batch_tokens={config.batch_tokens}")
    batches = [batch for stage in stages for batch in _batches(stage, config.batch_tokens, rng)]
    # One denominator for all batches: every learned token then counts the same, whatever else is in its batch.
    learned_per_batch = sum(sum(example.learn) for example in examples) / len(batches)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _schedule(step, len(batches), config.warmup)
        loss, learned = _loss(model, batch)
        optimizer.zero_grad()
        (loss / learned_per_batch).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        if callback is not None:
            callback(SFTProgress(step + 1, len(batches), loss.item() / max(learned, 1)))
    model.train(False)


def _batches(examples: Sequence[SFTExample], batch_tokens: int, rng: np.random.Generator) -> Iterator[list[SFTExample]]:
    """Batches of similar lengths, so that little is padded, in random order."""
    lengths = np.array([len(example.token_ids) for example in examples])
    shuffled = rng.permutation(len(examples))
    by_length = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    batches: list[list[SFTExample]] = [[]]
    for index in by_length:
        if (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(examples[index])
    for number in rng.permutation(len(batches)):
        yield batches[number]


def _loss(model: Any, batch: Sequence[SFTExample]) -> tuple[torch.Tensor, int]:
    """Returns the summed loss and the number of tokens it is over."""
    width = max(len(example.token_ids) for example in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    learn = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        learn[row, : len(example.learn)] = torch.tensor(example.learn)
    ids, learn = ids.to(model.device), learn.to(model.device)
    # Padding is on the right, where causal attention does not see it, so that no attention mask is needed.
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[:, :-1][learn[:, 1:]])
    targets = ids[:, 1:][learn[:, 1:]]
    return cross_entropy(logits.float(), targets, reduction="sum"), len(targets)


def _schedule(step: int, steps: int, warmup: float) -> float:
    warmup_steps = max(1, round(steps * warmup))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps))
