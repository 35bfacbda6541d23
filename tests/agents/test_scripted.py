from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleaner_env.agents.scripted import POLICIES, NoisyOraclePolicy, OraclePolicy, Policy, RandomPolicy, make_policy
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import ConfigError
from cleaner_env.registration import ENVIRONMENTS
from cleaner_env.wrappers import SAARWrapper


def play(env: gym.Env[Any, str], policy: Policy, index: int = 0, seed: int = 0) -> dict[str, Any]:
    conversation, info = env.reset(seed=seed, options={"index": index})
    inner = env.unwrapped
    assert isinstance(inner, ToolUseEnv)
    policy.begin(inner, np.random.default_rng(seed))
    over = False
    while not over:
        conversation, _, terminated, truncated, info = env.step(policy.act(conversation))
        over = terminated or truncated
    return {**info, "conversation": conversation}


@pytest.fixture
def arithmetic() -> Any:
    env = gym.make("CleanerArithmetic-v0", max_turns=16)
    yield env
    env.close()


@pytest.mark.parametrize("env_id", sorted(ENVIRONMENTS))
def test_the_oracle_is_right_about_every_problem(env_id: str) -> None:
    env = gym.make(env_id)
    inner = env.unwrapped
    assert isinstance(inner, ToolUseEnv)
    for index in range(min(len(inner.dataset.problems), 40)):
        info = play(env, OraclePolicy(), index)
        assert (info["verdict"], info["num_turns"]) == ("correct", 1), info["problem_id"]
    env.close()


@pytest.mark.parametrize(
    ("error_rate", "repair_rate", "calls"), [(0.0, 0.0, 2), (1.0, 1.0, 2), (0.5, 0.5, 1), (0.5, 0.5, 0)]
)
def test_the_noisy_oracle_calls_fails_and_repairs(
    arithmetic: Any, error_rate: float, repair_rate: float, calls: int
) -> None:
    info = play(arithmetic, NoisyOraclePolicy(error_rate, repair_rate, calls), seed=3)
    assert info["verdict"] == "correct"
    assert info["tool_calls"] - info["tool_errors"] == calls
    if error_rate in (0, 1):
        assert info["tool_errors"] == info["recovered_errors"] == error_rate * calls


def test_the_noisy_oracle_without_repairs_runs_out_of_turns(arithmetic: Any) -> None:
    info = play(arithmetic, NoisyOraclePolicy(1.0, 0.0))
    assert (info["verdict"], info["stop_condition"], info["tool_errors"]) == ("no_answer", "max_turns", 16)


def test_the_noisy_oracles_repairs_are_shallow_and_deep(arithmetic: Any) -> None:
    env = SAARWrapper(arithmetic)
    outcomes = set()
    for seed in range(12):
        info = play(env, NoisyOraclePolicy(1.0, 1.0), seed=seed)
        assert (info["verdict"], info["num_turns"], info["tool_errors"]) == ("correct", 2, 1)
        outcomes.update(repair.outcome for repair in env.repairs)
    assert outcomes == {"shallow", "deep"}


@pytest.mark.parametrize("env_id", sorted(ENVIRONMENTS))
def test_random_turns_never_break_an_environment(env_id: str) -> None:
    env = SAARWrapper(gym.make(env_id))
    seen = set()
    for seed in range(10):
        info = play(env, RandomPolicy(), seed=seed)
        assert info["verdict"] in ("correct", "incorrect", "no_answer")
        seen.update({"call"} if info["tool_calls"] else set(), info["tool_failure_reasons"])
    assert {"call", "MalformedCall"} <= seen
    env.close()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_equal_streams_give_equal_episodes(arithmetic: Any, name: str) -> None:
    assert play(arithmetic, make_policy(name), seed=5) == play(arithmetic, make_policy(name), seed=5)


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'greedy'; choose one of oracle, noisy, random"):
        make_policy("greedy")
    with pytest.raises(ConfigError, match=r"error_rate must lie in \[0, 1\], got 2"):
        NoisyOraclePolicy(error_rate=2)
    with pytest.raises(ConfigError, match="calls must not be negative, got -1"):
        NoisyOraclePolicy(calls=-1)
