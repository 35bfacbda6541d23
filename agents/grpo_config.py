"""The options of a GRPO run, as frozen dataclasses that a TOML file or ``key=value`` arguments fill."""

from __future__ import annotations

from dataclasses import dataclass, field

from cleaner_env.errors import ConfigError
from cleaner_env.wrappers.purifier import STRATEGIES

__all__ = [
    "EnvironmentConfig",
    "EvaluationConfig",
    "GRPOConfig",
    "LearnerConfig",
    "LossConfig",
    "RolloutConfig",
    "SAARConfig",
]


def _require(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name} must {rule}, got {value!r}")


@dataclass(frozen=True)
class EnvironmentConfig:
    """What is trained on.

    Attributes:
        id: A registered environment.
        dataset: The name of a data set, or the path of a problem file.
        train_split: Split for training; ``None`` for the data set's default.
        eval_split: Split for evaluation; ``None`` likewise.
        sandbox: Backend that runs the model's code.
        tool_format: How calls are written; ``None`` for the environment's default.
        max_turns: Assistant turns of an episode; ``None`` likewise.
    """

    id: str = "CleanerArithmetic-v0"
    dataset: str = "builtin"
    train_split: str | None = "train"
    eval_split: str | None = "test"
    sandbox: str = "auto"
    tool_format: str | None = None
    max_turns: int | None = None


@dataclass(frozen=True)
class SAARConfig:
    """How training episodes are purified.

    Attributes:
        share: Share of each group's episodes that are purified, in [0, 1]; 0 trains on raw episodes alone. Where that is
            no whole number of episodes, it is rounded up or down at random, right on average.
        similarity_threshold: Similarity of failed and corrected code from which on the reasoning is kept.
        max_retries: Corrections tried for one error.
        strategy: What becomes of failed calls: ``"saar"``, or for ablations ``"shallow"``, ``"deep"``, ``"mask"`` (their
            turns stay and are left out of the loss) or ``"none"``.
    """

    share: float = 0.5
    similarity_threshold: float = 0.5
    max_retries: int = 3
    strategy: str = "saar"

    def __post_init__(self) -> None:
        _require(self.strategy in STRATEGIES, "strategy", f"be one of {', '.join(STRATEGIES)}", self.strategy)
        for name in ("share", "similarity_threshold"):
            _require(0 <= getattr(self, name) <= 1, name, "lie in [0, 1]", getattr(self, name))
        _require(self.max_retries >= 0, "max_retries", "be at least 0", self.max_retries)


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are collected.

    Attributes:
        problems: Problems per step.
        group_size: Episodes per problem, whose rewards are compared with one another.
        turn_tokens: Most tokens of a turn.
        context_tokens: Most tokens of a whole conversation.
        temperature: Sampling temperature.
        top_p: Nucleus kept.
        concurrency: Episodes that run at a time.
    """

    problems: int = 8
    group_size: int = 16
    turn_tokens: int = 48
    context_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    concurrency: int = 128

    def __post_init__(self) -> None:
        for name in ("problems", "turn_tokens", "context_tokens", "concurrency"):
            _require(getattr(self, name) >= 1, name, "be at least 1", getattr(self, name))
        if self.context_tokens <= self.turn_tokens:
            raise ConfigError(
                f"context_tokens must exceed the {self.turn_tokens!r} turn_tokens, got {self.context_tokens!r}"
            )
        _require(self.group_size >= 2, "group_size", "be at least 2, for rewards to be compared", self.group_size)
        _require(self.temperature > 0, "temperature", "be positive, for episodes of a group to differ", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "lie in (0, 1]", self.top_p)


@dataclass(frozen=True)
class LossConfig:
    """Options of `grpo_loss`.

    Attributes:
        clip_low: A token's probability ratio gains nothing below ``1 - clip_low``.
        clip_high: Nor above ``1 + clip_high`` (a wider upper bound, as in DAPO, arXiv 2503.14476).
        dual_clip: Where an advantage is negative, the loss of a token is at most this many times the advantage's size
            (arXiv 1912.09729); ``None`` for no bound.
    """

    clip_low: float = 0.20
    clip_high: float = 0.28
    dual_clip: float | None = 10.0

    def __post_init__(self) -> None:
        _require(0 <= self.clip_low <= 1, "clip_low", "lie in [0, 1]", self.clip_low)
        _require(self.clip_high >= 0, "clip_high", "not be negative", self.clip_high)
        _require(self.dual_clip is None or self.dual_clip > 1, "dual_clip", "be above 1", self.dual_clip)


@dataclass(frozen=True)
class LearnerConfig:
    """How the weights are updated.

    Attributes:
        learning_rate: Of AdamW, after the warm-up.
        warmup_steps: Updates over which the learning rate rises linearly.
        weight_decay: Of AdamW.
        max_grad_norm: Gradients are scaled down to this norm.
        minibatches: Updates that a batch of episodes is divided into.
        microbatch_tokens: Tokens, padding included, that go through the model at a time.
        loss: The loss.
    """

    learning_rate: float = 3e-4
    warmup_steps: int = 5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    minibatches: int = 1
    microbatch_tokens: int = 16_384
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "minibatches", "microbatch_tokens"):
            _require(getattr(self, name) > 0, name, "be positive", getattr(self, name))
        for name in ("warmup_steps", "weight_decay"):
            _require(getattr(self, name) >= 0, name, "not be negative", getattr(self, name))


@dataclass(frozen=True)
class EvaluationConfig:
    """How the policy is measured during training, always with SAAR off.

    Attributes:
        every: Steps between evaluations; the first is before the first step, the last after the last.
        episodes: Problems in an evaluation, each tried once; the same ones every time.
    """

    every: int = 5
    episodes: int = 128

    def __post_init__(self) -> None:
        for name in ("every", "episodes"):
            _require(getattr(self, name) >= 1, name, "be at least 1", getattr(self, name))


@dataclass(frozen=True)
class GRPOConfig:
    """A whole run.

    Attributes:
        model: A model directory, or ``"tiny"`` for the project's own small model, made by a seeded cold start.
        seed: Everything random follows from it.
        steps: Batches of episodes.
        runs: The folder that run folders are made in.
        name: The run folder's name; the time of day where ``None``.
        save_every: Steps between checkpoints; the last step always has one.
        env: What is trained on.
        saar: How episodes are purified.
        rollout: How episodes are collected.
        learner: How the weights are updated.
        evaluation: How the policy is measured.
    """

    model: str = "tiny"
    seed: int = 0
    steps: int = 25
    runs: str = "runs"
    name: str | None = None
    save_every: int = 10
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    saar: SAARConfig = field(default_factory=SAARConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", "be at least 0", self.seed)
        for name in ("steps", "save_every"):
            _require(getattr(self, name) >= 1, name, "be at least 1", getattr(self, name))
