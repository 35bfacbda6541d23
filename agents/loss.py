"""The GRPO objective: advantages within a group, and a clipped loss per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cleaner_env.agents.grpo_config import LossConfig

__all__ = ["group_advantages", "grpo_loss"]


def group_advantages(rewards: Sequence[float], normalise: bool = True, epsilon: float = 1e-6) -> list[float]:
    """Compares the episodes of a group (GRPO, arXiv 2402.03300, equation 3).

    Args:
        rewards: The outcomes of one problem's episodes.
        normalise: Whether to divide by the standard deviation (of the group as a whole, not of a sample), plus ``epsilon``.
        epsilon: In the units of the rewards.

    Returns:
        One advantage per episode; zeros where all rewards are equal.

    Example:
        >>> group_advantages([1, 0, 0, 1], epsilon=0), group_advantages([1, 0, 0, 0], normalise=False)
        ([1.0, -1.0, -1.0, 1.0], [0.75, -0.25, -0.25, -0.25])
        >>> group_advantages([1, 1]), group_advantages([])
        ([0.0, 0.0], [])
    """
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalise:
        return centred
    deviation = (sum(value * value for value in centred) / len(centred)) ** 0.5
    return [value / (deviation + epsilon) for value in centred]


def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    action_tokens: int,
    config: LossConfig,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Computes the share that some tokens have in the token-mean loss of a whole batch.

    Summed over the microbatches of a batch, losses and metrics alike are means over its action tokens.

    Args:
        logprobs: Log-probabilities of ``n`` action tokens under the weights that are trained.
        old_logprobs: The same under the weights and in the context of the rollout.
        advantages: One per token.
        action_tokens: Action tokens of the whole batch, those with an advantage of 0 included.
        config: Options.

    Returns:
        The loss, a scalar to be minimised, and as metrics the share of tokens that were clipped (``clipped``), the estimate
        ``mean(r - 1 - log r)`` of the divergence of the old policy from the new (``kl``; ``r`` is the probability ratio,
        see Schulman, "Approximating KL divergence", 2020) and the mean surprisal of the actions (``surprisal``, nats).
    """
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(-advantages * ratio, -advantages * bounded)
    clipped = -advantages * bounded > -advantages * ratio
    if config.dual_clip is not None:
        ceiling = -advantages * config.dual_clip
        too_large = (advantages < 0) & (losses > ceiling)
        losses = torch.where(too_large, ceiling, losses)
        clipped = clipped | too_large
    with torch.no_grad():
        totals = {"clipped": clipped.sum(), "kl": (ratio - 1 - log_ratio).sum(), "surprisal": -logprobs.sum()}
    return losses.sum() / action_tokens, {name: float(total) / action_tokens for name, total in totals.items()}
