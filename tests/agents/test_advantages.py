from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.agents.advantages import group_advantages, overlong_penalty
from cleaner_env.agents.grpo_config import AdvantageConfig
from cleaner_env.errors import ConfigError

rewards = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=2, max_size=16)
CONFIGS = [
    AdvantageConfig(baseline, scale) for baseline in ("mean", "leave-one-out") for scale in ("group", "batch", "none")
]


def test_advantages_computed_by_hand() -> None:
    # Mean 0.25, standard deviation sqrt(3)/4.
    assert group_advantages([1, 0, 0, 0], epsilon=0) == pytest.approx([3**0.5, *[-1 / 3**0.5] * 3])
    assert group_advantages([1, 0, 0, 0], epsilon=0.1)[0] == pytest.approx(0.75 / (3**0.5 / 4 + 0.1))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Groups (4, 0, 2) and (2, 2): means 2 and 2, deviations sqrt(8/3) and 0; of the batch sqrt(8/5) around 2.
        (AdvantageConfig(), [1.5**0.5, -(1.5**0.5), 0, 0, 0]),
        (AdvantageConfig(scale="batch"), [2 / 1.6**0.5, -2 / 1.6**0.5, 0, 0, 0]),
        (AdvantageConfig(scale="none"), [2, -2, 0, 0, 0]),
        (AdvantageConfig("leave-one-out", "none"), [4 - (0 + 2) / 2, 0 - (4 + 2) / 2, 2 - (4 + 0) / 2, 0, 0]),
        (AdvantageConfig("leave-one-out", "batch"), [3 / 1.6**0.5, -3 / 1.6**0.5, 0, 0, 0]),
    ],
)
def test_variants_computed_by_hand(config: AdvantageConfig, expected: list[float]) -> None:
    # The groups are mixed up, as when episodes end in any order.
    ordered = group_advantages([4, 2, 0, 2, 2], [7, 3, 7, 7, 3], config, epsilon=0)
    assert [ordered[number] for number in (0, 2, 3, 1, 4)] == pytest.approx(expected)


@given(rewards)
def test_advantages_sum_to_zero_and_have_unit_variance(values: list[float]) -> None:
    advantages = group_advantages(values, epsilon=0)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    if len(set(values)) > 1:
        assert sum(a * a for a in advantages) / len(values) == pytest.approx(1)
    else:
        assert set(advantages) == {0.0}


@given(st.lists(rewards, min_size=1, max_size=4), st.sampled_from(CONFIGS))
def test_every_group_sums_to_zero_and_groups_matter_to_one_another_only_in_the_batchs_deviation(
    batch: list[list[float]], config: AdvantageConfig
) -> None:
    flat = [value for values in batch for value in values]
    groups = [number for number, values in enumerate(batch) for _ in values]
    advantages = group_advantages(flat, groups, config)
    for number, values in enumerate(batch):
        own = [advantage for advantage, group in zip(advantages, groups, strict=True) if group == number]
        assert sum(own) == pytest.approx(0, abs=1e-9)
        assert (set(own) == {0.0}) == (len(set(values)) == 1)
        if config.scale != "batch":
            assert own == group_advantages(values, config=config)


@given(rewards)
def test_leave_one_out_is_what_its_name_says(values: list[float]) -> None:
    others = [(sum(values) - value) / (len(values) - 1) for value in values]
    expected = [value - other for value, other in zip(values, others, strict=True)]
    assert group_advantages(values, config=AdvantageConfig("leave-one-out", "none")) == pytest.approx(expected, abs=1e-9)


@given(rewards, st.floats(0.1, 10), st.floats(-5, 5), st.sampled_from(["group", "batch"]))
def test_advantages_do_not_depend_on_the_scale_of_rewards(
    values: list[float], scale: float, shift: float, divisor: str
) -> None:
    config = AdvantageConfig(scale=divisor)
    moved = [scale * value + shift for value in values]
    expected = group_advantages(values, config=config, epsilon=0)
    assert group_advantages(moved, config=config, epsilon=0) == pytest.approx(expected, abs=1e-6)


def test_a_tiny_rounding_error_is_no_difference_that_counts() -> None:
    assert max(map(abs, group_advantages([0.1 + 0.2, 0.3]))) < 1e-9


def test_an_episode_whose_group_was_lost_has_nothing_to_be_compared_with() -> None:
    for config in CONFIGS:
        assert group_advantages([1, 0, 1], [0, 0, 1], config)[2] == 0


def test_the_overlong_penalty_of_the_paper() -> None:
    # 20,480 tokens with a buffer of 4,096: nothing up to 16,384, half at 18,432, all from the limit on.
    lengths = [1, 16_384, 18_432, 20_480, 30_000]
    assert [overlong_penalty(length, 20_480, 4_096) for length in lengths] == [0, 0, -0.5, -1, -1]
    assert [overlong_penalty(length, 20_480, 4_096, 0.2) for length in lengths] == [0, 0, -0.1, -0.2, -0.2]
    assert overlong_penalty(30_000, 20_480, 0) == 0


@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 200), st.floats(0, 2))
def test_longer_is_never_better(length: int, limit: int, buffer: int, penalty: float) -> None:
    shorter, longer = (overlong_penalty(value, limit, buffer, penalty) for value in (length, length + 1))
    assert -penalty <= longer <= shorter <= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("baseline", "median"),
        ("scale", "std"),
        ("overlong_buffer", -1),
        ("overlong_penalty", float("inf")),
        ("first_error_penalty", float("nan")),
        ("pair_weight", -0.5),
    ],
)
def test_options_out_of_range_are_named(name: str, value: float | str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must .*{value}"):
        AdvantageConfig(**{name: value})  # type: ignore[arg-type]
