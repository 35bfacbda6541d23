"""Adapters in real models: what they compute, what is saved of them, and a run that trains and resumes with them."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("peft")

from cleaner_env.agents.grpo import GRPOTrainer
from cleaner_env.agents.grpo_config import (
    EnvironmentConfig,
    EvaluationConfig,
    GRPOConfig,
    LearnerConfig,
    LoRAConfig,
    RolloutConfig,
)
from cleaner_env.agents.lora import adapter_weights, add_lora, load_adapter_weights, merged_weights
from cleaner_env.agents.models import load_model
from cleaner_env.agents.run_folder import RunFolder, load_trainer_state
from cleaner_env.errors import ConfigError

IDS = torch.arange(5, 15)[None]


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def randomise(model):
    with torch.no_grad():
        for weight in adapter_weights(model).values():
            weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))


def test_new_adapters_change_nothing_and_are_all_that_is_trained(random_model):
    model, plain = random_model(), random_model()
    before = torch.random.get_rng_state()
    add_lora(model, LoRAConfig(rank=4), seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(logits(model), logits(plain))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == set(adapter_weights(model)) != set()
    assert not any("lm_head" in name or "embed" in name for name in trained)


def test_equal_seeds_give_equal_adapters(random_model):
    models = [random_model() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        add_lora(model, LoRAConfig(rank=4), seed)
    first, same, other = map(adapter_weights, models)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_merged_weights_are_those_of_a_plain_model_that_computes_the_same(random_model):
    model, plain = random_model(), random_model()
    add_lora(model, LoRAConfig(rank=4, alpha=8))
    randomise(model)
    assert not torch.allclose(logits(model), logits(plain), atol=1e-3)
    merged = merged_weights(model)
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    assert torch.allclose(logits(model), logits(plain), atol=1e-5)


def test_a_plain_models_merged_weights_are_its_own(random_model):
    model = random_model()
    own = model.state_dict()
    assert all(weight is own[name] or torch.equal(weight, own[name]) for name, weight in merged_weights(model).items())
    assert adapter_weights(model) == {}


def test_adapters_of_another_rank_are_refused(random_model):
    first, second = random_model(), random_model()
    add_lora(first, LoRAConfig(rank=4))
    add_lora(second, LoRAConfig(rank=2))
    with pytest.raises(ConfigError, match="do not fit"):
        load_adapter_weights(first, adapter_weights(second))
    with pytest.raises(ConfigError, match="has adapters already"):
        add_lora(first, LoRAConfig(rank=4))


def test_a_run_with_adapters_resumes_exactly_and_leaves_plain_models(random_model, tokenizer, tmp_path, parity_env):
    config = GRPOConfig(
        steps=3,
        deterministic=True,
        runs=str(tmp_path),
        save_every=1,
        env=EnvironmentConfig(id=parity_env),
        rollout=RolloutConfig(problems=2, group_size=4, turn_tokens=12, context_tokens=300, concurrency=8),
        learner=LearnerConfig(learning_rate=0.01, warmup_steps=0),
        lora=LoRAConfig(rank=4),
        evaluation=EvaluationConfig(every=3, episodes=2),
    )

    def trainer(**changes):
        return GRPOTrainer(replace(config, **changes), random_model(), tokenizer)

    with trainer(name="whole") as whole:
        folder = whole.run()
        expected = adapter_weights(whole.learner.model)
        frozen = merged_weights(random_model())
        assert all(torch.equal(frozen[n], w) for n, w in whole.learner.model.state_dict().items() if n in frozen)
        model, _ = load_model(folder / "checkpoints" / "step-000003", "float32")
        assert torch.allclose(logits(model), logits(whole.learner.model), atol=1e-4)
    with trainer(name="part", steps=2) as part:
        path = part.run()
    with trainer() as resumed, RunFolder.reopen(path) as reopened:
        resumed.restore(load_trainer_state(reopened.latest_checkpoint()))
        resumed.run(resumed=reopened)
        found = adapter_weights(resumed.learner.model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert any(weight.any() for name, weight in expected.items() if "lora_B" in name)
