from __future__ import annotations

import warnings
from collections import defaultdict
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.agents.grpo_config import ImportanceConfig, LossConfig
from cleaner_env.agents.loss import (
    ActionTokens,
    grpo_loss,
    importance_weights,
    kl_estimates,
    token_weights,
)

LENGTHS = (5, 2, 4)
ADVANTAGES = (1.5, -0.5, -2.0)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Ratios on both sides of every bound: from 0.45 to 20.
NEW = vector(-1.0, -2.0, -0.5, -3.0, -0.1, -1.5, -0.7, -2.2, -0.4, -1.1, -0.9)
RATIOS = vector(1.0, 1.1, 1.6, 0.7, 0.45, 0.6, 1.3, 0.9, 1.5, 0.5, 20.0)
OLD = NEW - RATIOS.log()
REFERENCE = NEW + vector(0.3, -0.2, 0.1, 0.0, -0.4, 0.2, -0.1, 0.5, -0.3, 0.0, 0.1)
ROLLOUT = OLD - vector(0.1, 1.2, -0.2, -1.0, 0.3, 0.0, 0.2, 0.9, -0.1, 0.1, 0.0)


def tokens_of(config: LossConfig, **more: Any) -> tuple[ActionTokens, float]:
    lengths = torch.tensor(LENGTHS)
    weights, normaliser = token_weights(LENGTHS, config)
    advantages, weight = (torch.repeat_interleave(vector(*values), lengths) for values in (ADVANTAGES, weights))
    return ActionTokens(lengths, OLD, advantages, weight, **more), normaliser


def loss_and_gradient(config: LossConfig, **more: Any) -> tuple[float, torch.Tensor]:
    new = NEW.clone().requires_grad_()
    tokens, normaliser = tokens_of(config, **more)
    loss, _ = grpo_loss(new, tokens, normaliser, config)
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return loss.item(), new.grad


def one_token(new: torch.Tensor, old: float, advantage: float, config: LossConfig) -> tuple[torch.Tensor, dict[str, float]]:
    return grpo_loss(new, ActionTokens(torch.tensor([1]), vector(old), vector(advantage), vector(1.0)), 1, config)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 1.0, -1.2, -1.2),
        (1.5, 1.0, -1.28, 0.0),  # clipped: gains no more above 1.28
        (0.5, 1.0, -0.5, -0.5),  # not clipped: a likely token's loss of probability is undone
        (0.5, -1.0, 0.8, 0.0),  # clipped: gains no more below 0.8
        (1.5, -1.0, 1.5, 1.5),  # not clipped
        (50.0, -2.0, 20.0, 0.0),  # dual clip: at most 10 times the advantage
        (9.0, -2.0, 18.0, 18.0),
    ],
)
def test_the_clipped_loss_of_a_token_computed_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    new = vector(-3.0 + log(ratio)).requires_grad_()
    value, sums = one_token(new, -3.0, advantage, LossConfig())
    value.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert value.item() == pytest.approx(loss)
    assert new.grad.item() == pytest.approx(gradient)
    assert sums["clipped"] == float(gradient == 0)
    assert sums["kl"] == pytest.approx(ratio - 1 - log(ratio))
    assert sums["surprisal"] == pytest.approx(3 - log(ratio))


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(1.0, 2.0, 1.0), (1.5, 2.0, 1.28), (1.5, -1.0, 1.28), (0.5, 1.0, 0.8), (0.9, -1.0, 0.9)],
)
def test_cispo_never_drops_a_gradient_but_bounds_its_weight(ratio: float, advantage: float, weight: float) -> None:
    new = vector(-3.0 + log(ratio)).requires_grad_()
    value, sums = one_token(new, -3.0, advantage, LossConfig(objective="cispo"))
    value.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert value.item() == pytest.approx(-weight * advantage * (-3 + log(ratio)))
    assert new.grad.item() == pytest.approx(-weight * advantage)
    assert sums["clipped"] == float(weight != ratio)


def test_without_dual_clip_the_loss_is_unbounded() -> None:
    loss, _ = one_token(vector(-8 + log(50)), -8.0, -2.0, LossConfig(dual_clip=None))
    assert loss.item() == pytest.approx(100)


def test_aggregations_computed_by_hand() -> None:
    # Fresh tokens, whose ratio is 1: each one's loss is minus its row's advantage.
    advantages = [advantage for advantage, length in zip(ADVANTAGES, LENGTHS, strict=True) for _ in range(length)]
    for config, expected in (
        (LossConfig(), -sum(advantages) / 11),
        (LossConfig(aggregation="sequence-mean"), -sum(ADVANTAGES) / 3),
        (LossConfig(aggregation="constant", constant_tokens=8), -sum(advantages) / (3 * 8)),
    ):
        tokens, normaliser = tokens_of(config)
        fresh = ActionTokens(tokens.lengths, NEW, tokens.advantages, tokens.weights)
        assert grpo_loss(NEW, fresh, normaliser, config)[0].item() == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
def test_rows_that_do_not_count_add_to_the_sum_and_not_to_the_divisor(aggregation: str) -> None:
    config = LossConfig(aggregation=aggregation, constant_tokens=7)
    weights, normaliser = token_weights([3, 2, 4, 0], config, [True, True, False, True])
    alone, same = token_weights([3, 2, 0], config)
    assert normaliser == same == {"token-mean": 5, "sequence-mean": 2, "constant": 21}[aggregation]
    assert [*weights[:2], weights[3]] == alone
    assert weights[2] == (0.25 if aggregation == "sequence-mean" else 1)


def test_nothing_is_divided_by_zero_where_no_row_counts() -> None:
    assert token_weights([0], LossConfig()) == ([1.0], 1.0)
    assert token_weights([3], LossConfig(aggregation="sequence-mean"), [False])[1] == 1.0


def test_gspo_compares_geometric_means_computed_by_hand() -> None:
    config = LossConfig(ratio="sequence", aggregation="sequence-mean", clip_low=0.2, clip_high=0.2, dual_clip=None)
    loss, gradient = loss_and_gradient(config)
    ratios = [exp(part.log().mean().item()) for part in RATIOS.split(LENGTHS)]
    clipped = [min(max(ratio, 0.8), 1.2) for ratio in ratios]
    terms = [max(-a * r, -a * c) for a, r, c in zip(ADVANTAGES, ratios, clipped, strict=True)]
    assert loss == pytest.approx(sum(terms) / 3)
    slopes = [-a * r / length / 3 for a, r, length in zip(ADVANTAGES, ratios, LENGTHS, strict=True)]
    dropped = [-a * c > -a * r for a, r, c in zip(ADVANTAGES, ratios, clipped, strict=True)]
    expected = [0.0 if drop else slope for drop, slope in zip(dropped, slopes, strict=True)]
    assert gradient.tolist() == pytest.approx(torch.repeat_interleave(vector(*expected), torch.tensor(LENGTHS)).tolist())


def test_with_sequence_ratios_every_token_keeps_its_own_advantage() -> None:
    config = LossConfig(ratio="sequence", aggregation="sequence-mean", dual_clip=None)
    new = vector(-1.0, -1.0).requires_grad_()
    tokens = ActionTokens(torch.tensor([2]), new.detach(), vector(1.0, -3.0), vector(0.5, 0.5))
    grpo_loss(new, tokens, 1, config)[0].backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.tolist() == [-0.5, 1.5]


def test_the_divergence_from_the_reference_computed_by_hand() -> None:
    new = vector(log(0.5)).requires_grad_()
    tokens = ActionTokens(torch.tensor([1]), new.detach(), vector(1.0), vector(1.0), None, vector(log(0.25)))
    loss, sums = grpo_loss(new, tokens, 1, LossConfig(reference_kl=0.1))
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    k3 = 0.5 - 1 + log(2)
    assert loss.item() == pytest.approx(-1 + 0.1 * k3)
    assert new.grad.item() == pytest.approx(-1 + 0.1 * (1 - 0.5))
    assert sums["reference_kl"] == pytest.approx(k3)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
def test_the_divergence_is_estimated_without_bias_and_never_below_0(first: list[float], second: list[float]) -> None:
    p, q = (vector(*values) / sum(values) for values in (first, second[: len(first)]))
    estimates = kl_estimates(p.log() - q.log())
    assert estimates.min() >= -1e-12
    assert (p * estimates).sum().item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"correction": "none"}, [1, 1, 1, 1]),
        ({"correction": "truncate", "low": 0.5}, [1.5, 2, 0.5, 1]),
        ({"correction": "mask", "low": 0.5}, [1.5, 0, 0, 1]),
        ({"correction": "truncate", "level": "sequence", "high": 8}, [6, 6, 0.25, 0.25]),
        ({"correction": "mask", "level": "sequence", "high": 5}, [0, 0, 0.25, 0.25]),
    ],
)
def test_importance_weights_computed_by_hand(options: dict[str, Any], expected: list[float]) -> None:
    # The learner finds the tokens 1.5, 4, 0.25 and 3 times as likely; the last was moved, so its ratio says nothing.
    old, rollout = vector(0.6, 0.8, 0.1, 0.3).log(), vector(0.4, 0.2, 0.4, 0.1).log()
    same = torch.tensor([True, True, True, False])
    config = ImportanceConfig(old_logprobs="learner", **options)
    assert importance_weights(old, rollout, same, torch.tensor([2, 2]), config).tolist() == pytest.approx(expected)


def test_a_token_weighs_as_much_as_its_importance() -> None:
    weights = torch.linspace(0, 2, 11, dtype=torch.float64)
    config = LossConfig(dual_clip=None)
    _, plain = loss_and_gradient(config)
    _, weighted = loss_and_gradient(config, importance=weights)
    assert weighted.tolist() == pytest.approx((plain * weights).tolist())
    tokens, normaliser = tokens_of(config, importance=weights)
    assert grpo_loss(NEW, tokens, normaliser, config)[1]["importance"] == pytest.approx(11.0)


VARIANTS = st.builds(
    LossConfig,
    objective=st.sampled_from(["clip", "cispo"]),
    ratio=st.sampled_from(["token", "sequence"]),
    aggregation=st.sampled_from(["token-mean", "sequence-mean", "constant"]),
    constant_tokens=st.just(16),
    clip_low=st.floats(0, 1),
    clip_high=st.floats(0, 2),
    dual_clip=st.sampled_from([None, 3.0]),
    reference_kl=st.sampled_from([0.0, 0.1]),
)


@given(VARIANTS, st.permutations([0, 1, 2]), st.integers(0, 3))
def test_however_rows_are_grouped_the_sum_is_the_same(config: LossConfig, order: list[int], cut: int) -> None:
    whole, gradient = loss_and_gradient(config, reference_logprobs=REFERENCE)
    tokens, normaliser = tokens_of(config)
    new, total = NEW.clone().requires_grad_(), 0.0
    starts = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    for part in (order[:cut], order[cut:]):
        if part:
            index = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in part])
            some = ActionTokens(
                tokens.lengths[part], OLD[index], tokens.advantages[index], tokens.weights[index], None, REFERENCE[index]
            )
            loss, _ = grpo_loss(new[index], some, normaliser, config)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
    assert new.grad is not None
    assert total == pytest.approx(whole)
    assert new.grad.tolist() == pytest.approx(gradient.tolist())


GSPO = {"importance_sampling_level": "sequence"}
IMPORTANCE = {
    "truncate": ImportanceConfig("learner", correction="truncate"),
    "mask": ImportanceConfig("learner", correction="mask", low=0.5),
    "truncate sequence": ImportanceConfig("learner", correction="truncate", level="sequence", high=1.2),
}
COMPARED: dict[str, tuple[LossConfig, dict[str, Any], str | None, float, float]] = {
    # name: our options, TRL's, the correction, and the loss and the norm of its gradient that TRL 1.16.0 gives.
    "GRPO": (
        LossConfig(aggregation="sequence-mean", clip_high=0.2, dual_clip=None),
        {"loss_type": "grpo"},
        None,
        3.5966666667,
        3.3521444214,
    ),
    "clip-higher": (
        LossConfig(dual_clip=None),
        {"loss_type": "dapo", "epsilon_high": 0.28},
        None,
        3.6959090909,
        3.6581089874,
    ),
    "dual clip": (
        LossConfig(),
        {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 10.0},
        None,
        1.8777272727,
        0.3982723538,
    ),
    "Dr. GRPO": (
        LossConfig(aggregation="constant", constant_tokens=16, clip_high=0.2, dual_clip=None),
        {"loss_type": "dr_grpo"},
        None,
        0.8494791667,
        0.8383166429,
    ),
    "CISPO": (
        LossConfig(objective="cispo", clip_low=1, clip_high=4),
        {"loss_type": "cispo", "epsilon_high": 5.0},
        None,
        -0.6315909091,
        1.0206266306,
    ),
    "GSPO": (
        LossConfig(ratio="sequence", aggregation="sequence-mean", clip_low=3e-4, clip_high=4e-4, dual_clip=None),
        {"loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4, **GSPO},
        None,
        1.0001431918,
        0.6691333171,
    ),
    "GSPO not clipped": (
        LossConfig(ratio="sequence", aggregation="sequence-mean", clip_low=1, clip_high=9, dual_clip=None),
        {"loss_type": "grpo", "epsilon_low": 1.0, "epsilon_high": 9.0, **GSPO},
        None,
        0.9807225395,
        0.677179983,
    ),
    "KL": (
        LossConfig(dual_clip=None, clip_high=0.2, reference_kl=0.05),
        {"loss_type": "dapo", "beta": 0.05},
        None,
        3.7084774141,
        3.6575993662,
    ),
    "truncate": (LossConfig(dual_clip=None, clip_high=0.2), {"loss_type": "dapo"}, "truncate", 3.7770725159, 3.6765691415),
    "mask": (LossConfig(dual_clip=None, clip_high=0.2), {"loss_type": "dapo"}, "mask", 3.7849155535, 3.649495869),
    "truncate sequence": (
        LossConfig(dual_clip=None, clip_high=0.2),
        {"loss_type": "dapo"},
        "truncate sequence",
        4.4481818182,
        4.3897307849,
    ),
}


def ours(name: str) -> tuple[float, torch.Tensor]:
    config, _, correction, *_ = COMPARED[name]
    more: dict[str, Any] = {"reference_logprobs": REFERENCE} if config.reference_kl else {}
    if correction is not None:
        same, lengths = torch.ones(11, dtype=torch.bool), torch.tensor(LENGTHS)
        more["importance"] = importance_weights(OLD, ROLLOUT, same, lengths, IMPORTANCE[correction])
    return loss_and_gradient(config, **more)


@pytest.mark.parametrize("name", COMPARED)
def test_losses_are_those_that_trl_gave(name: str) -> None:
    loss, gradient = ours(name)
    assert (loss, gradient.norm().item()) == pytest.approx(COMPARED[name][3:], abs=1e-9)


def padded(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(values.split(LENGTHS)), batch_first=True)


def trls(name: str) -> tuple[float, torch.Tensor]:
    """Runs the loss of TRL's own trainer on the same tensors, with as much of a trainer around it as it looks at."""
    from trl.trainer.grpo_trainer import GRPOTrainer  # type: ignore[import-not-found,unused-ignore]

    _, options, correction, *_ = COMPARED[name]
    new = NEW.clone().requires_grad_()
    mask = padded(torch.ones(11, dtype=torch.long))
    low, high = options.get("epsilon_low", 0.2), options.get("epsilon_high", 0.2)
    args = SimpleNamespace(delta=options.get("delta"), use_bias_correction_kl=False)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=args,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=options.get("importance_sampling_level", "token"),
        beta=options.get("beta", 0.0),
        loss_type=options["loss_type"],
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=16,
        _entropy_bonus_enabled=False,
        _metrics={"eval": defaultdict(list)},
        accelerator=SimpleNamespace(num_processes=1, gather=lambda values: values, reduce=lambda values, reduction: values),
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded(new), padded(NEW), None),
    )
    inputs = {
        "prompt_ids": torch.zeros(3, 1, dtype=torch.long),
        "prompt_mask": torch.ones(3, 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": vector(*ADVANTAGES),
        "old_per_token_logps": padded(OLD),
        "ref_per_token_logps": padded(REFERENCE),
        "num_items_in_batch": mask.sum(),
    }
    if correction is not None:
        # What the trainer computes before, in a method that also samples: a ratio for each token, or for each sequence.
        config = IMPORTANCE[correction]
        difference = padded(OLD - ROLLOUT)
        ratio = (difference.sum(-1, keepdim=True) if config.level == "sequence" else difference).exp()
        outside = (ratio < config.low) | (ratio > config.high)
        truncated, dropped = ratio.clamp(config.low, config.high), ratio.masked_fill(outside, 0.0)
        inputs["importance_sampling_ratio"] = truncated if config.correction == "truncate" else dropped
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert new.grad is not None
    return loss.item(), new.grad


@pytest.mark.parametrize("name", COMPARED)
def test_losses_are_those_of_trl(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's own dependencies
        pytest.importorskip("trl.trainer.grpo_trainer")
        expected, gradient = trls(name)
    loss, own = ours(name)
    assert loss == pytest.approx(expected, abs=1e-12)
    assert own.tolist() == pytest.approx(gradient.tolist(), abs=1e-12)
