from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import tomli
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.agents.grpo_config import (
    AdvantageConfig,
    GRPOConfig,
    ImportanceConfig,
    LearnerConfig,
    LossConfig,
    RolloutConfig,
)
from cleaner_env.config import dump_toml, load_config
from cleaner_env.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LearnerConfig, {"learning_rate": 0}, "learning_rate must be positive, got 0"),
        (LearnerConfig, {"learning_rate": inf}, "learning_rate must be finite, got inf"),
        (LearnerConfig, {"learning_rate": nan}, "learning_rate must be positive, got nan"),
        (LearnerConfig, {"weight_decay": inf}, "weight_decay must be finite, got inf"),
        (LearnerConfig, {"weight_decay": nan}, "weight_decay must not be negative, got nan"),
        (LearnerConfig, {"warmup_steps": -1}, "warmup_steps must not be negative, got -1"),
        (LearnerConfig, {"max_grad_norm": -1}, "max_grad_norm must be positive, got -1"),
        (LearnerConfig, {"minibatches": 0}, "minibatches must be positive, got 0"),
        (LearnerConfig, {"microbatch_tokens": 0}, "microbatch_tokens must be positive, got 0"),
        (LearnerConfig, {"schedule": "step"}, "schedule must be one of constant, linear, cosine, got 'step'"),
        (LearnerConfig, {"final_share": 1.5}, r"final_share must lie in \[0, 1\], got 1.5"),
        (LearnerConfig, {"autocast": "int8"}, "autocast must be one of bfloat16, float16, got 'int8'"),
        (LossConfig, {"objective": "ppo"}, "objective must be one of clip, cispo, got 'ppo'"),
        (LossConfig, {"ratio": "word"}, "ratio must be one of token, sequence, got 'word'"),
        (LossConfig, {"aggregation": "sum"}, "aggregation must be one of token-mean, .*, got 'sum'"),
        (LossConfig, {"aggregation": "constant"}, "constant_tokens must be given with .*'constant'.*, got None"),
        (LossConfig, {"constant_tokens": 0}, "constant_tokens must be at least 1, got 0"),
        (LossConfig, {"clip_low": 1.5}, r"clip_low must lie in \[0, 1\], got 1.5"),
        (LossConfig, {"clip_low": -0.1}, "clip_low must .*, got -0.1"),
        (LossConfig, {"clip_high": -1.0}, "clip_high must .*, got -1.0"),
        (LossConfig, {"dual_clip": 1.0}, "dual_clip must be finite and above 1, got 1.0"),
        (LossConfig, {"dual_clip": inf}, "dual_clip must be finite and above 1, got inf"),
        (LossConfig, {"reference_kl": -0.1}, "reference_kl must be finite and not negative, got -0.1"),
        (ImportanceConfig, {"old_logprobs": "new"}, "old_logprobs must be one of rollout, learner, got 'new'"),
        (ImportanceConfig, {"grafts": "none"}, "grafts must be one of recomputed, raw, got 'none'"),
        (ImportanceConfig, {"correction": "clip"}, "correction must be one of none, truncate, mask, got 'clip'"),
        (ImportanceConfig, {"correction": "mask"}, "correction='mask' has nothing .* without old_logprobs='learner'"),
        (ImportanceConfig, {"level": "turn"}, "level must be one of token, sequence, got 'turn'"),
        (ImportanceConfig, {"low": 2}, r"low must lie in \[0, 1\], got 2"),
        (ImportanceConfig, {"high": nan}, "high must be at least 1, got nan"),
        (RolloutConfig, {"temperature": inf}, "temperature must be finite, got inf"),
    ],
)
def test_options_out_of_range_are_named(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        kind(**options)


def test_an_infinite_learning_rate_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(ConfigError, match="learning_rate must be finite, got inf"):
        load_config(GRPOConfig, overrides=["learner.learning_rate=inf"])


def test_a_buffer_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"advantage\.overlong_buffer must be at most the 300 context_tokens, got 301"):
        GRPOConfig(rollout=RolloutConfig(context_tokens=300), advantage=AdvantageConfig(overlong_buffer=301))


advantages = st.builds(
    AdvantageConfig,
    baseline=st.sampled_from(["mean", "leave-one-out"]),
    scale=st.sampled_from(["group", "batch", "none"]),
    overlong_buffer=st.integers(0, 100),
    pair_weight=st.floats(0, 2),
)
losses = st.builds(
    LossConfig,
    objective=st.sampled_from(["clip", "cispo"]),
    ratio=st.sampled_from(["token", "sequence"]),
    constant_tokens=st.none() | st.integers(1, 9),
    dual_clip=st.none() | st.floats(1.5, 20),
)
learners = st.builds(
    LearnerConfig,
    learning_rate=st.floats(1e-9, 1),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    autocast=st.sampled_from([None, "bfloat16", "float16"]),
    gradient_checkpointing=st.booleans(),
    loss=losses,
)


@given(st.builds(GRPOConfig, advantage=advantages, learner=learners))
def test_every_configuration_survives_its_file(config: GRPOConfig) -> None:
    overrides = [f"{name}={value}" for name, value in _leaves(tomli.loads(dump_toml(config)))]
    assert load_config(GRPOConfig, overrides=overrides) == config


def _leaves(options: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    leaves = []
    for name, value in options.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{name}.")
        else:
            leaves.append((prefix + name, tomli_w.dumps({"value": value}).partition(" = ")[2]))
    return leaves
