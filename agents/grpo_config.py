"""The options of a GRPO run, as frozen dataclasses that a TOML file or ``key=value`` arguments fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from cleaner_env.errors import ConfigError
from cleaner_env.wrappers.purifier import STRATEGIES

__all__ = [
    "AdvantageConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "GRPOConfig",
    "ImportanceConfig",
    "LearnerConfig",
    "LoRAConfig",
    "LossConfig",
    "RolloutConfig",
    "SAARConfig",
]

TRACKERS: Final = ("tensorboard", "wandb", "trackio")


def _require(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name} must {rule}, got {value!r}")


def _require_choice(name: str, value: str, *choices: str) -> None:
    _require(value in choices, name, f"be one of {', '.join(choices)}", value)


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
        share: Share of episodes that are purified, in [0, 1]; 0 trains on raw episodes alone.
        final_share: Share in the last step, to which ``share`` moves in a straight line; ``None`` for no change.
        from_step: Steps with raw episodes alone before purification sets in.
        mixing: ``"group"`` purifies as many episodes of each group (where the share is no whole number of them, it is
            rounded up or down at random, right on average); ``"episode"`` draws for each episode by itself.
        similarity_threshold: Similarity of failed and corrected code from which on the reasoning is kept.
        max_retries: Corrections tried for one error.
        strategy: What becomes of failed calls: ``"saar"``, or for ablations ``"shallow"``, ``"deep"``, ``"mask"`` (their
            turns stay and are left out of the loss) or ``"none"``.
    """

    share: float = 0.5
    final_share: float | None = None
    from_step: int = 0
    mixing: str = "group"
    similarity_threshold: float = 0.5
    max_retries: int = 3
    strategy: str = "saar"

    def __post_init__(self) -> None:
        _require(self.strategy in STRATEGIES, "strategy", f"be one of {', '.join(STRATEGIES)}", self.strategy)
        _require(self.mixing in ("group", "episode"), "mixing", "be group or episode", self.mixing)
        for name in ("share", "similarity_threshold"):
            _require(0 <= getattr(self, name) <= 1, name, "lie in [0, 1]", getattr(self, name))
        final = self.final_share
        _require(final is None or 0 <= final <= 1, "final_share", "lie in [0, 1]", final)
        for name in ("max_retries", "from_step"):
            _require(getattr(self, name) >= 0, name, "be at least 0", getattr(self, name))

    def share_at(self, step: int, steps: int) -> float:
        """Returns the share of purified episodes in a step.

        Args:
            step: Counted from 0.
            steps: In the whole run.

        Example:
            >>> falling = SAARConfig(share=1.0, final_share=0.0, from_step=10)
            >>> [falling.share_at(step, steps=21) for step in (9, 10, 15, 20)]
            [0.0, 1.0, 0.5, 0.0]
        """
        if step < self.from_step:
            return 0.0
        if self.final_share is None:
            return self.share
        progress = (step - self.from_step) / max(1, steps - 1 - self.from_step)
        return self.share + (self.final_share - self.share) * progress


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
        step_s: Seconds that a step of an environment may take; after that its episode is given up, and the others do not
            wait for it.
        retries: How often an episode is begun again that a failing sandbox or engine ended.
        max_batches: With more than 1, groups whose rewards are all equal, from which nothing is learned, are left out, and
            more batches are collected for a step, this many at most, until as many groups as ``problems`` are there
            (dynamic sampling, DAPO, arXiv 2503.14476).
        prefix_cache_mb: Memory for the keys and values of conversations, in MiB, so that their next turns are read from
            where they go on; 0 keeps nothing.
    """

    problems: int = 8
    group_size: int = 16
    turn_tokens: int = 48
    context_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    concurrency: int = 128
    step_s: float = 600.0
    retries: int = 2
    max_batches: int = 1
    prefix_cache_mb: int = 2048

    def __post_init__(self) -> None:
        _require(self.prefix_cache_mb >= 0, "prefix_cache_mb", "not be negative", self.prefix_cache_mb)
        for name in ("problems", "turn_tokens", "context_tokens", "concurrency", "max_batches"):
            _require(getattr(self, name) >= 1, name, "be at least 1", getattr(self, name))
        _require(self.step_s > 0, "step_s", "be positive", self.step_s)
        _require(self.retries >= 0, "retries", "not be negative", self.retries)
        if self.context_tokens <= self.turn_tokens:
            raise ConfigError(
                f"context_tokens must exceed the {self.turn_tokens!r} turn_tokens, got {self.context_tokens!r}"
            )
        _require(self.group_size >= 2, "group_size", "be at least 2, for rewards to be compared", self.group_size)
        temperature = self.temperature
        _require(temperature > 0, "temperature", "be positive, for episodes of a group to differ", temperature)
        _require(isfinite(temperature), "temperature", "be finite", temperature)
        _require(0 < self.top_p <= 1, "top_p", "lie in (0, 1]", self.top_p)


@dataclass(frozen=True)
class AdvantageConfig:
    """How the episodes of a group are compared, and what is credited to single turns.

    Attributes:
        baseline: What a reward is compared with: the ``"mean"`` of its group, or with ``"leave-one-out"`` that of the other
            episodes in it (RLOO, arXiv 2402.14740).
        scale: What the difference is divided by: the standard deviation of the rewards of the ``"group"`` or of the whole
            ``"batch"``, or ``"none"`` (Dr. GRPO, arXiv 2503.20783).
        overlong_buffer: The last so many tokens of ``rollout.context_tokens``, over which the reward falls (DAPO, arXiv
            2503.14476); 0 for no such penalty.
        overlong_penalty: What it has fallen by at the end of them.
        first_error_penalty: Taken from the advantage of the tokens of a first attempt that failed, in episodes that
            succeeded and were not rewritten. A control for purification.
        pair_weight: For a repair in an episode that succeeded, the failed first attempt is learned from as well, its call
            tokens with minus this advantage, and the tokens of the turn that replaced it gain half of it; 0 for neither.
    """

    baseline: str = "mean"
    scale: str = "group"
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0
    first_error_penalty: float = 0.0
    pair_weight: float = 0.0

    def __post_init__(self) -> None:
        _require_choice("baseline", self.baseline, "mean", "leave-one-out")
        _require_choice("scale", self.scale, "group", "batch", "none")
        for name in ("overlong_buffer", "overlong_penalty", "first_error_penalty", "pair_weight"):
            value = getattr(self, name)
            _require(isfinite(value) and value >= 0, name, "be finite and not negative", value)


@dataclass(frozen=True)
class LossConfig:
    """Options of `grpo_loss`.

    Attributes:
        objective: What a token's probability ratio is put into: ``"clip"``, the clipped objective of PPO, or ``"cispo"``,
            which clips the weight of a token's gradient and never drops one (MiniMax-M1, arXiv 2506.13585).
        ratio: Of each ``"token"``, or of the whole ``"sequence"``, their geometric mean (GSPO, arXiv 2507.18071, which
            pairs it with ``"sequence-mean"`` and clips at 3e-4 and 4e-4).
        aggregation: Over a batch: ``"token-mean"`` (DAPO, arXiv 2503.14476), ``"sequence-mean"``, the mean over episodes of
            the mean over an episode's tokens (GRPO, arXiv 2402.03300), or ``"constant"``, the sum over tokens per episode
            divided by ``constant_tokens`` whatever its length (Dr. GRPO, arXiv 2503.20783).
        constant_tokens: For ``"constant"``, and needed there: the most tokens that an episode may have, say.
        clip_low: A token's probability ratio gains nothing below ``1 - clip_low``.
        clip_high: Nor above ``1 + clip_high`` (a wider upper bound, as in DAPO). CISPO's authors bound it above alone, as
            ``clip_low=1`` does.
        dual_clip: Where an advantage is negative, the clipped objective's loss of a token is at most this many times the
            advantage's size (arXiv 1912.09729); ``None`` for no bound.
        reference_kl: Weight of the divergence from the model that training began with; 0 for none.
    """

    objective: str = "clip"
    ratio: str = "token"
    aggregation: str = "token-mean"
    constant_tokens: int | None = None
    clip_low: float = 0.20
    clip_high: float = 0.28
    dual_clip: float | None = 10.0
    reference_kl: float = 0.0

    def __post_init__(self) -> None:
        _require_choice("objective", self.objective, "clip", "cispo")
        _require_choice("ratio", self.ratio, "token", "sequence")
        _require_choice("aggregation", self.aggregation, "token-mean", "sequence-mean", "constant")
        given = self.constant_tokens
        _require(given is None or given >= 1, "constant_tokens", "be at least 1", given)
        if self.aggregation == "constant":
            _require(given is not None, "constant_tokens", "be given with aggregation 'constant', such as 1024", given)
        _require(0 <= self.clip_low <= 1, "clip_low", "lie in [0, 1]", self.clip_low)
        _require(self.clip_high >= 0, "clip_high", "not be negative", self.clip_high)
        dual = self.dual_clip
        _require(dual is None or (isfinite(dual) and dual > 1), "dual_clip", "be finite and above 1", dual)
        kl = self.reference_kl
        _require(isfinite(kl) and kl >= 0, "reference_kl", "be finite and not negative", kl)


@dataclass(frozen=True)
class ImportanceConfig:
    """What the new policy is compared with, and what is done where the rollout's arithmetic was not the learner's.

    Attributes:
        old_logprobs: Those of the ``"rollout"`` engine, or those that the ``"learner"`` computes before its first update of
            a batch, which costs one more forward pass.
        grafts: Tokens that purification moved to another context count with their log-probabilities ``"recomputed"`` there,
            or, for an ablation that is wrong on purpose, with the ``"raw"`` ones of where they were sampled.
        correction: With the learner's own, tokens can be weighted by how much likelier the learner found them than the
            rollout: ``"none"``; ``"truncate"`` moves weights into the bounds (Ionides, "Truncated importance sampling",
            2008); ``"mask"`` makes a weight outside of them 0 (IcePop, arXiv 2510.18855). A recomputed graft was sampled
            in another context, so that no weight would be right; it has 1.
        level: Weights are of each ``"token"``, or of the ``"sequence"``: the product of its tokens', the same for all.
        low: Lower bound of a weight.
        high: Upper bound.
    """

    old_logprobs: str = "rollout"
    grafts: str = "recomputed"
    correction: str = "none"
    level: str = "token"
    low: float = 0.0
    high: float = 2.0

    def __post_init__(self) -> None:
        _require_choice("old_logprobs", self.old_logprobs, "rollout", "learner")
        _require_choice("grafts", self.grafts, "recomputed", "raw")
        _require_choice("correction", self.correction, "none", "truncate", "mask")
        _require_choice("level", self.level, "token", "sequence")
        if self.correction != "none" and self.old_logprobs == "rollout":
            raise ConfigError(f"correction={self.correction!r} has nothing to correct without old_logprobs='learner'")
        _require(0 <= self.low <= 1, "low", "lie in [0, 1]", self.low)
        _require(self.high >= 1, "high", "be at least 1", self.high)


@dataclass(frozen=True)
class LearnerConfig:
    """How the weights are updated.

    Attributes:
        learning_rate: Of AdamW, after the warm-up.
        warmup_steps: Updates over which the learning rate rises linearly.
        schedule: What it does then: stay ``"constant"``, or fall ``"linear"`` or as a ``"cosine"`` until the run's last
            update.
        final_share: The share of it that is left then.
        weight_decay: Of AdamW.
        max_grad_norm: Gradients are scaled down to this norm.
        minibatches: Updates that a batch of episodes is divided into.
        microbatch_tokens: Tokens, padding included, that go through the model at a time.
        gradient_checkpointing: Whether layers are computed again for the backward pass, which takes a third more work and a
            fraction of the memory.
        autocast: Precision of the learner's matrix products, ``"bfloat16"`` or ``"float16"`` (with its loss scaled, so that
            small gradients are not lost); ``None`` for that of the weights. Log-probabilities are float32 always.
        loss: The loss.
        importance: What the loss compares new log-probabilities with.
    """

    learning_rate: float = 3e-4
    warmup_steps: int = 5
    schedule: str = "constant"
    final_share: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    minibatches: int = 1
    microbatch_tokens: int = 16_384
    gradient_checkpointing: bool = False
    autocast: str | None = None
    loss: LossConfig = field(default_factory=LossConfig)
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "minibatches", "microbatch_tokens"):
            _require(getattr(self, name) > 0, name, "be positive", getattr(self, name))
        for name in ("warmup_steps", "weight_decay"):
            _require(getattr(self, name) >= 0, name, "not be negative", getattr(self, name))
        for name in ("learning_rate", "weight_decay"):
            _require(isfinite(getattr(self, name)), name, "be finite", getattr(self, name))
        _require_choice("schedule", self.schedule, "constant", "linear", "cosine")
        _require(0 <= self.final_share <= 1, "final_share", "lie in [0, 1]", self.final_share)
        if self.autocast is not None:
            _require_choice("autocast", self.autocast, "bfloat16", "float16")


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters, which are trained in place of the weights.

    Attributes:
        rank: Of the adapters; 0 trains all weights.
        alpha: Adapters are scaled by ``alpha / rank``.
    """

    rank: int = 0
    alpha: int = 32

    def __post_init__(self) -> None:
        _require(self.rank >= 0, "rank", "not be negative", self.rank)
        _require(self.alpha >= 1, "alpha", "be at least 1", self.alpha)


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
        device: What the model runs on, such as ``"cpu"`` or ``"cuda:1"``; ``"auto"`` is a GPU where there is one.
        dtype: Precision of the weights, such as ``"float32"`` or ``"bfloat16"``.
        seed: Everything random follows from it.
        deterministic: Whether episodes wait for one another at each turn, so that equal runs on a CPU are equal to the bit,
            those that were interrupted included. Otherwise each episode goes on as soon as it can, and an interrupted run
            goes on with the episodes that had ended.
        steps: Batches of episodes.
        runs: The folder that run folders are made in.
        name: The run folder's name; the time of day where ``None``.
        save_every: Steps between checkpoints; the last step always has one.
        keep_checkpoints: How many of the latest checkpoints are kept; ``None`` for all.
        best_metric: The checkpoint with the highest value of this metric is kept besides.
        env: What is trained on.
        saar: How episodes are purified.
        rollout: How episodes are collected.
        advantage: How they are compared.
        learner: How the weights are updated.
        lora: Which of them.
        trackers: Where metrics go besides ``metrics.jsonl``: any of ``"tensorboard"``, ``"wandb"`` and ``"trackio"``.
        project: What the latter two file the run under.
        evaluation: How the policy is measured.
    """

    model: str = "tiny"
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    deterministic: bool = False
    steps: int = 25
    runs: str = "runs"
    name: str | None = None
    save_every: int = 10
    keep_checkpoints: int | None = None
    best_metric: str = "eval/success"
    trackers: tuple[str, ...] = ("tensorboard",)
    project: str = "cleaner-env"
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    saar: SAARConfig = field(default_factory=SAARConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", "be at least 0", self.seed)
        for name in ("steps", "save_every"):
            _require(getattr(self, name) >= 1, name, "be at least 1", getattr(self, name))
        for tracker in self.trackers:
            _require_choice("trackers", tracker, *TRACKERS)
        keep = self.keep_checkpoints
        _require(keep is None or keep >= 1, "keep_checkpoints", "be at least 1", keep)
        buffer, context = self.advantage.overlong_buffer, self.rollout.context_tokens
        _require(buffer <= context, "advantage.overlong_buffer", f"be at most the {context} context_tokens", buffer)
