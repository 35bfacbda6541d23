from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.agents.sft import SFTConfig, SFTExample, SFTProgress, sft
from cleaner_env.errors import ConfigError


def examples_of(model: Any, count: int) -> list[SFTExample]:
    """Sequences that repeat their first half, which is what is to be learned."""
    rng = np.random.default_rng(0)
    halves = [tuple(rng.integers(3, 13, int(rng.integers(2, 7))).tolist()) for _ in range(count)]
    return [SFTExample(half * 2, (False,) * len(half) + (True,) * len(half)) for half in halves]


def surprisal(model: Any, example: SFTExample) -> float:
    with torch.no_grad():
        return -float(masked_logprobs(model, torch.tensor([example.token_ids]), torch.tensor([example.learn])).mean())


def test_what_is_learned_becomes_likely(random_model: Any) -> None:
    model = random_model()
    examples = examples_of(model, 8)
    before = np.mean([surprisal(model, example) for example in examples])
    sft(model, [examples] * 30, SFTConfig(learning_rate=3e-3, batch_tokens=64), np.random.default_rng(0))
    assert np.mean([surprisal(model, example) for example in examples]) < before / 3


def test_tokens_outside_the_mask_are_not_learned(random_model: Any) -> None:
    model = random_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    unlearned = [SFTExample((5, 6, 7), (False, False, False))]
    sft(model, [unlearned], SFTConfig(weight_decay=0.0), np.random.default_rng(0))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_the_same_seed_gives_the_same_weights(random_model: Any) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = random_model()
        sft(model, [examples_of(model, 20)], SFTConfig(batch_tokens=64), np.random.default_rng(seed))
        return [parameter.detach() for parameter in model.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(weights(0), weights(0), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(weights(0), weights(1), strict=True))


def test_stages_come_in_order_and_progress_tells_the_loss(random_model: Any) -> None:
    model = random_model()
    first, second = SFTExample((3, 4, 5), (False, True, True)), SFTExample((6, 7, 8), (False, True, True))
    seen: list[SFTProgress] = []
    expected = surprisal(model, first)
    assert surprisal(model, second) != pytest.approx(expected, rel=0.01)
    sft(model, [[first], [second] * 3], SFTConfig(batch_tokens=3), np.random.default_rng(0), seen.append)
    assert [(progress.step, progress.steps) for progress in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert seen[0].loss == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_learned_is_named(random_model: Any) -> None:
    model = random_model()
    with pytest.raises(ConfigError, match="at least one example"):
        sft(model, [[]], SFTConfig(), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="an example of 9 tokens does not fit into batch_tokens=8"):
        sft(model, [[SFTExample((5,) * 9, (True,) * 9)]], SFTConfig(batch_tokens=8), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0), ("batch_tokens", -1), ("max_grad_norm", 0), ("warmup", 1.0)]
)
def test_options_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must .*{value}"):
        SFTConfig(**{name: value})  # type: ignore[arg-type]
