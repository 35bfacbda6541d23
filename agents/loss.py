"""The loss of a batch: a function of log-probabilities and advantages, summed over tokens.

The variants in the literature differ in three things that are independent of one another, and are options of `LossConfig`:

==========================  ============  ===========  ==================
variant                     objective     ratio        aggregation
==========================  ============  ===========  ==================
GRPO (arXiv 2402.03300)     ``clip``      ``token``    ``sequence-mean``
DAPO (arXiv 2503.14476)     ``clip``      ``token``    ``token-mean``
Dr. GRPO (arXiv 2503.20783) ``clip``      ``token``    ``constant``
GSPO (arXiv 2507.18071)     ``clip``      ``sequence`` ``sequence-mean``
CISPO (arXiv 2506.13585)    ``cispo``     ``token``    ``token-mean``
==========================  ============  ===========  ==================

What divides the sum is known for a batch before any of it is computed (`token_weights`), so that it makes no difference how
the batch is cut into microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cleaner_env.agents.grpo_config import ImportanceConfig, LossConfig
from cleaner_env.extras import optional_packages

with optional_packages("training"):
    import torch

__all__ = [
    "ActionTokens",
    "cispo_losses",
    "clipped_losses",
    "grpo_loss",
    "importance_weights",
    "kl_estimates",
    "sequence_log_ratios",
    "token_weights",
]

_Objective: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LossConfig], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class ActionTokens:
    """The action tokens of some rows, one row behind the other, and what the loss has to know of them.

    Attributes:
        lengths: Of each row the number of its tokens, integers that sum to ``n``.
        old_logprobs: ``n`` log-probabilities under the weights that they were sampled with, in nats.
        advantages: ``n``.
        weights: ``n``, those of `token_weights`.
        importance: ``n`` `importance_weights`, or ``None`` where all are 1.
        reference_logprobs: ``n`` log-probabilities under the model that training began with; ``None`` for no divergence
            from it.
    """

    lengths: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    importance: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None


def grpo_loss(
    logprobs: torch.Tensor, tokens: ActionTokens, normaliser: float, config: LossConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """Computes the share that some rows have in the loss of a whole batch.

    Args:
        logprobs: Log-probabilities of ``n`` action tokens under the weights that are trained, in nats.
        tokens: What belongs to them.
        normaliser: That of `token_weights`.
        config: Options.

    Returns:
        The loss, a scalar to be minimised, and sums over the tokens: of those that were clipped (``clipped``), of the
        estimated divergence of the old policy from the new (``kl``, see `kl_estimates`), of the actions' surprisal
        (``surprisal``, nats) and, where the tokens have them, of the importance weights (``importance``) and the divergence
        of the new policy from the reference (``reference_kl``).

    Example:
        >>> new, old = torch.tensor([0.5, 0.6]).log(), torch.tensor([0.5, 0.4]).log()
        >>> tokens = ActionTokens(torch.tensor([2]), old, torch.tensor([1.0, 1.0]), torch.ones(2))
        >>> loss, sums = grpo_loss(new, tokens, normaliser=2, config=LossConfig())
        >>> f"{loss:.2f}", sums["clipped"]  # minus the mean of 1 and 1.28
        ('-1.14', 1.0)
    """
    log_ratios = logprobs - tokens.old_logprobs
    compared = sequence_log_ratios(logprobs, log_ratios, tokens.lengths) if config.ratio == "sequence" else log_ratios
    losses, clipped = _OBJECTIVES[config.objective](logprobs, compared.exp(), tokens.advantages, config)
    sums = {"clipped": clipped, "kl": kl_estimates(-log_ratios), "surprisal": -logprobs}
    if tokens.importance is not None:
        losses = losses * tokens.importance
        sums["importance"] = tokens.importance
    if tokens.reference_logprobs is not None:
        divergence = kl_estimates(logprobs - tokens.reference_logprobs)
        losses = losses + config.reference_kl * divergence
        sums["reference_kl"] = divergence
    loss = (losses * tokens.weights).sum() / normaliser
    return loss, {name: float(values.detach().sum()) for name, values in sums.items()}


def clipped_losses(
    logprobs: torch.Tensor, ratios: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes PPO's clipped loss of each token (arXiv 1707.06347, equation 7), with a bound where advantages are negative.

    The two sides are clipped apart, as in DAPO (arXiv 2503.14476, equation 8); the bound is that of arXiv 1912.09729,
    equation 5.

    Args:
        logprobs: ``n``; not used, they are in ``ratios``.
        ratios: ``n`` probability ratios of the new to the old policy.
        advantages: ``n``.
        config: ``clip_low``, ``clip_high`` and ``dual_clip``.

    Returns:
        ``n`` losses, and as booleans which of them were clipped, and so have no gradient.
    """
    bounded = ratios.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(-advantages * ratios, -advantages * bounded)
    clipped = -advantages * bounded > -advantages * ratios
    if config.dual_clip is not None:
        ceiling = -advantages * config.dual_clip
        too_large = (advantages < 0) & (losses > ceiling)
        losses = torch.where(too_large, ceiling, losses)
        clipped = clipped | too_large
    return losses, clipped


def cispo_losses(
    logprobs: torch.Tensor, ratios: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes CISPO's loss of each token: every token has a gradient, with a weight that is clipped.

    Source: MiniMax-M1, arXiv 2506.13585, equations 4 and 5.

    Args:
        logprobs: ``n`` log-probabilities under the new policy.
        ratios: ``n`` probability ratios of the new to the old policy.
        advantages: ``n``.
        config: ``clip_low`` and ``clip_high``.

    Returns:
        ``n`` losses, and as booleans which of their weights were clipped.
    """
    ratios = ratios.detach()
    bounded = ratios.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -bounded * advantages * logprobs, bounded != ratios


_OBJECTIVES: Final[Mapping[str, _Objective]] = {"clip": clipped_losses, "cispo": cispo_losses}


def sequence_log_ratios(logprobs: torch.Tensor, log_ratios: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Gives every token the mean log-ratio of its row, of which the token itself is the only part that has a gradient.

    This is GSPO-token (arXiv 2507.18071, equations 14 to 16): where a row's advantages are all the same, loss and gradient
    are those of GSPO, and where they are not, each token still gets its own.

    Args:
        logprobs: ``n``, under the new policy.
        log_ratios: ``n``, of the new to the old policy.
        lengths: Tokens of each row.

    Returns:
        ``n`` log-ratios.
    """
    means = torch.segment_reduce(log_ratios.detach(), "mean", lengths=lengths)
    return torch.repeat_interleave(means, lengths) + (logprobs - logprobs.detach())


def kl_estimates(log_ratios: torch.Tensor) -> torch.Tensor:
    """Estimates ``KL(p || q)`` from samples of ``p``, without bias and never below 0.

    Source: Schulman, "Approximating KL divergence", 2020, estimator k3; as a penalty in GRPO, arXiv 2402.03300, equation 4.

    Args:
        log_ratios: ``log p - log q`` of each sample.

    Example:
        >>> kl_estimates(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.3679])
    """
    return (-log_ratios).exp() - 1 + log_ratios


def importance_weights(
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    same_context: torch.Tensor,
    lengths: torch.Tensor,
    config: ImportanceConfig,
) -> torch.Tensor:
    """Weighs tokens by how much likelier the learner found them than the engine that sampled them.

    Args:
        old_logprobs: ``n`` log-probabilities that the learner computed with the weights of the rollout.
        rollout_logprobs: ``n`` that the engine gave.
        same_context: ``n`` booleans: whether the token was sampled in the context that it now stands in. Others count as
            though both agreed on them.
        lengths: Tokens of each row.
        config: The correction, the level that it is made at, and its bounds.

    Returns:
        ``n`` weights.

    Example:
        >>> old, rollout = torch.tensor([0.5, 0.9]).log(), torch.tensor([0.5, 0.3]).log()
        >>> config = ImportanceConfig(old_logprobs="learner", correction="truncate")
        >>> importance_weights(old, rollout, torch.tensor([True, True]), torch.tensor([2]), config)
        tensor([1., 2.])
    """
    log_weights = torch.where(same_context, old_logprobs - rollout_logprobs, 0.0)
    if config.level == "sequence":
        log_weights = torch.repeat_interleave(torch.segment_reduce(log_weights, "sum", lengths=lengths), lengths)
    weights = log_weights.exp()
    if config.correction == "truncate":
        return weights.clamp(config.low, config.high)
    if config.correction == "mask":
        return torch.where((weights < config.low) | (weights > config.high), 0.0, weights)
    return torch.ones_like(weights)


def token_weights(
    lengths: Sequence[int], config: LossConfig, counted: Sequence[bool] | None = None
) -> tuple[list[float], float]:
    """Returns what the tokens of each row of a batch weigh in its loss, and what the sum over all tokens is divided by.

    Args:
        lengths: Action tokens of each row.
        config: ``aggregation`` and ``constant_tokens``.
        counted: Which rows are episodes of their own; the others add to the sum and not to what divides it. All by default.

    Returns:
        One weight per row, and the divisor.

    Example:
        >>> token_weights([2, 6], LossConfig())
        ([1.0, 1.0], 8.0)
        >>> token_weights([2, 6], LossConfig(aggregation="sequence-mean"))
        ([0.5, 0.16666666666666666], 2.0)
        >>> token_weights([2, 6], LossConfig(aggregation="constant", constant_tokens=10))
        ([1.0, 1.0], 20.0)
    """
    episodes = [length for length, counts in zip(lengths, counted or [True] * len(lengths), strict=True) if counts]
    if config.aggregation == "sequence-mean":
        weights, normaliser = [1 / max(1, length) for length in lengths], sum(length > 0 for length in episodes)
    elif config.aggregation == "constant":
        weights, normaliser = [1.0] * len(lengths), len(episodes) * (config.constant_tokens or 1)
    else:
        weights, normaliser = [1.0] * len(lengths), sum(episodes)
    return weights, float(max(1, normaliser))
