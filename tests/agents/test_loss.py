from __future__ import annotations

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.agents.grpo_config import LossConfig
from cleaner_env.agents.loss import group_advantages, grpo_loss
from cleaner_env.errors import ConfigError

rewards = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=2, max_size=16)


def test_advantages_computed_by_hand() -> None:
    # Mean 0.25, standard deviation sqrt(3)/4.
    assert group_advantages([1, 0, 0, 0], epsilon=0) == pytest.approx([3**0.5, *[-1 / 3**0.5] * 3])
    assert group_advantages([1, 0, 0, 0], epsilon=0.1)[0] == pytest.approx(0.75 / (3**0.5 / 4 + 0.1))


@given(rewards)
def test_advantages_sum_to_zero_and_have_unit_variance(values: list[float]) -> None:
    advantages = group_advantages(values, epsilon=0)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    if len(set(values)) > 1:
        assert sum(a * a for a in advantages) / len(values) == pytest.approx(1)
    else:
        assert set(advantages) == {0.0}


@given(rewards, st.floats(0.1, 10), st.floats(-5, 5))
def test_advantages_do_not_depend_on_the_scale_of_rewards(values: list[float], scale: float, shift: float) -> None:
    moved = [scale * value + shift for value in values]
    assert group_advantages(moved, epsilon=0) == pytest.approx(group_advantages(values, epsilon=0), abs=1e-6)


def test_a_tiny_rounding_error_is_no_difference_that_counts() -> None:
    assert max(map(abs, group_advantages([0.1 + 0.2, 0.3]))) < 1e-9


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
def test_the_loss_of_a_token_computed_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    old = torch.tensor([-3.0], dtype=torch.float64)
    new = (old + log(ratio)).requires_grad_()
    value, metrics = grpo_loss(new, old, torch.tensor([advantage], dtype=torch.float64), 1, LossConfig())
    value.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert value.item() == pytest.approx(loss)
    assert new.grad.item() == pytest.approx(gradient)
    assert metrics["clipped"] == float(gradient == 0)
    assert metrics["kl"] == pytest.approx(ratio - 1 - log(ratio))
    assert metrics["surprisal"] == pytest.approx(3 - log(ratio))


def test_without_dual_clip_the_loss_is_unbounded() -> None:
    old = torch.tensor([-8.0])
    loss, _ = grpo_loss(old + log(50), old, torch.tensor([-2.0]), 1, LossConfig(dual_clip=None))
    assert loss.item() == pytest.approx(100)


def test_microbatches_add_up_to_the_mean_over_all_action_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new, advantages = (torch.randn(10, generator=generator) * 0.3 for _ in range(3))
    whole, metrics = grpo_loss(new, old, advantages, 25, LossConfig())
    parts = [grpo_loss(new[part], old[part], advantages[part], 25, LossConfig()) for part in (slice(0, 3), slice(3, 10))]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item())
    for name, value in metrics.items():
        assert sum(part[name] for _, part in parts) == pytest.approx(value)
    by_hand = sum(
        max(-a * exp(n - o), -a * min(max(exp(n - o), 0.8), 1.28))
        for n, o, a in zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True)
    )
    assert whole.item() == pytest.approx(by_hand / 25, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("clip_low", 1.5), ("clip_low", -0.1), ("clip_high", -1.0), ("dual_clip", 1.0)]
)
def test_options_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must .*{value}"):
        LossConfig(**{name: value})
