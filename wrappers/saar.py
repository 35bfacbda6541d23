"""`SAARWrapper`: purifies the history of an episode while it is collected.

Source: arXiv 2601.15141, Similarity-Aware Adaptive Rollback. The rule itself is `purify`, a pure function; this file
decides when it is applied.

An episode of the wrapped environment runs as usual until a tool call fails. Then the history before the failed turn is
frozen and the agent sees the error: the *lookahead* observation. Its next action is taken as a correction. When that runs,
the failed turn is replaced and the observation is the purified conversation. When it fails too it replaces the failed turn
at once, and the agent sees the newer error, up to ``max_retries`` times. Corrections that fail, and the error they correct,
cost no turns: a purified turn counts once.

======================  =================================================================================
``info["saar"]``        meaning
======================  =================================================================================
enabled                 whether this episode is purified; turns false when a repair fails or is given up
phase                   ``"idle"``, ``"lookahead"`` (the next action is a correction), ``"shallow"``,
                        ``"deep"`` (a turn was just replaced), ``"failed"``, ``"abandoned"``
attempts                corrections tried for the current or just finished repair
similarity              of the failed and the corrected code in the last replacement, else ``None``
shallow, deep, failed,  repairs of this episode that ended so
abandoned
hidden_tokens           sampled tokens of this episode that no longer stand in its history
======================  =================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import gymnasium as gym
from gymnasium.error import ResetNeeded

from cleaner_env.conversation import Completion, Conversation, Message
from cleaner_env.env import MALFORMED, ToolUseEnv, Transition
from cleaner_env.errors import ConfigError, InvalidActionError
from cleaner_env.wrappers.purification import Purification, Turn, purify
from cleaner_env.wrappers.similarity import Similarity, code_similarity, get_similarity, reference_similarity

__all__ = ["MODEL_ERRORS", "Repair", "SAARWrapper", "code_similarity", "purify"]

MODEL_ERRORS: Final = frozenset({"error", "exit", "timeout", "oom", "output_limit", "killed", MALFORMED})
"""The values of ``tool_status`` that are the model's own doing. An infrastructure error is none of them."""

Outcome = Literal["shallow", "deep", "failed", "abandoned"]


@dataclass
class Repair:
    """One error and what became of it.

    Attributes:
        history: The frozen conversation before the failed turn.
        failures: The failed turns as they were written: the first attempt, then each failed correction.
        current: The failed turn that stands in the lookahead, corrections having been grafted onto it.
        turn_before: Assistant turns in ``history``.
        correction: The correction that ran, as it was written.
        purified: The turn that replaced the failed one.
        similarity: Of the last comparison.
        outcome: How the repair ended, ``None`` while it goes on or where the episode ended first.
    """

    history: Conversation
    failures: list[Turn]
    current: Turn
    turn_before: int
    correction: Turn | None = None
    purified: Turn | None = None
    similarity: float | None = None
    outcome: Outcome | None = None

    @property
    def attempts(self) -> int:
        """Corrections tried."""
        return len(self.failures) - 1 + (self.correction is not None)

    @property
    def lookahead(self) -> Conversation:
        """The conversation that shows the agent the latest failure."""
        return (*self.history, *self.current.messages)


@dataclass
class _Episode:
    enabled: bool = False
    repair: Repair | None = None
    repairs: list[Repair] = field(default_factory=list)
    raw: list[Message] = field(default_factory=list)
    phase: str = "idle"
    hidden_tokens: int = 0


class SAARWrapper(gym.Wrapper[Conversation, str, Conversation, str], gym.utils.RecordConstructorArgs):
    """Rewrites the history of an episode so that a repaired tool call looks right at the first attempt.

    It goes directly onto a `ToolUseEnv`, below any wrapper that counts or records steps.

    Args:
        env: A `ToolUseEnv`, possibly inside Gymnasium's checking wrappers.
        similarity_threshold: Similarity in [0, 1] from which on a replacement is shallow. The paper uses 0.5.
        max_retries: Corrections tried for one error. The paper uses 3.
        rollback_probability: Share of episodes that are purified, drawn at ``reset`` from the environment's generator; the
            others run as though there were no wrapper. ``reset(options={"saar": bool})`` decides for one episode.
        similarity: How pieces of code are compared: a name among `cleaner_env.wrappers.similarity.SIMILARITIES`, or a
            function.
        on_errors: The values of ``tool_status`` that start a repair; all of `MODEL_ERRORS` by default.
        reference_compatible: Chooses between shallow and deep as the reference implementation does, by ``"reference"``.

    Raises:
        ConfigError: An argument is out of range, or ``env`` has no history to rewrite or is wrapped already.

    Example:
        >>> import cleaner_env, gymnasium as gym
        >>> env = SAARWrapper(gym.make("CleanerArithmetic-v0"))
        >>> start, info = env.reset(seed=1)
        >>> lookahead, *_, info = env.step("```python\\nprnt(6 * 7)\\n```")
        >>> lookahead[-1]["content"], info["saar"]["phase"]
        ("NameError: name 'prnt' is not defined", 'lookahead')
        >>> purified, *_, info = env.step("```python\\nprint(6 * 7)\\n```")
        >>> purified[len(start):] == ({"role": "assistant", "content": "```python\\nprint(6 * 7)\\n```"},
        ...                           {"role": "tool", "content": "42"})
        True
        >>> info["saar"]["phase"], info["turn"]
        ('shallow', 1)
        >>> env.close()
    """

    def __init__(
        self,
        env: gym.Env[Conversation, str],
        similarity_threshold: float = 0.5,
        max_retries: int = 3,
        rollback_probability: float = 1.0,
        similarity: str | Similarity = code_similarity,
        on_errors: Collection[str] = MODEL_ERRORS,
        reference_compatible: bool = False,
    ) -> None:
        _check_env(env)
        _check_arguments(similarity_threshold, max_retries, rollback_probability, on_errors)
        if reference_compatible and similarity not in (code_similarity, "reference"):
            raise ConfigError(
                f"reference_compatible chooses the similarity itself; leave out similarity={similarity!r:.80}"
            )
        # Whatever has its default value is left out, so that the spec can be written as JSON.
        chosen: dict[str, Any] = {} if similarity is code_similarity else {"similarity": similarity}
        if frozenset(on_errors) != MODEL_ERRORS:
            chosen["on_errors"] = sorted(on_errors)
        if reference_compatible:
            chosen["reference_compatible"] = True
        gym.utils.RecordConstructorArgs.__init__(
            self,
            similarity_threshold=similarity_threshold,
            max_retries=max_retries,
            rollback_probability=rollback_probability,
            **chosen,
        )
        gym.Wrapper.__init__(self, env)
        self._threshold = similarity_threshold
        self._max_retries = max_retries
        self._probability = rollback_probability
        self._similarity = reference_similarity if reference_compatible else get_similarity(similarity)
        self._on_errors = frozenset(on_errors)
        self._episode = _Episode()

    @property
    def tool_env(self) -> ToolUseEnv:
        """The environment underneath."""
        env = self.unwrapped
        assert isinstance(env, ToolUseEnv)
        return env

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """Every repair of this episode, in order, finished or not."""
        return tuple(self._episode.repairs)

    @property
    def raw_conversation(self) -> Conversation:
        """Everything that was said in this episode, in order: failed calls, errors and corrections included."""
        return tuple(dict(message) for message in self._episode.raw)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        """Begins an episode and decides whether it is purified.

        Args:
            seed: As in Gymnasium.
            options: ``{"saar": bool}`` decides; otherwise ``rollback_probability`` does. Other keys are the environment's.

        Raises:
            ConfigError: ``options["saar"]`` is not a ``bool``.
        """
        options = dict(options or {})
        chosen = options.pop("saar", None)
        if chosen is not None and not isinstance(chosen, bool):
            raise ConfigError(f"options['saar'] must be True or False, got {chosen!r}")
        observation, info = self.env.reset(seed=seed, options=options)
        if chosen is None:
            # No draw where there is nothing to decide, so that the problems are those of the bare environment.
            certain = self._probability in (0, 1)
            chosen = self._probability == 1 if certain else bool(self.tool_env.np_random.random() < self._probability)
        self._episode = _Episode(enabled=chosen, raw=list(observation))
        return observation, self._with_saar(info)

    def step(self, action: str) -> Transition:
        """Takes a turn, or a correction where the last observation was a lookahead.

        Raises:
            InvalidActionError: The action is not a ``str``.
            ResetNeeded: The episode is over or has not begun.
        """
        if not isinstance(action, str):
            raise InvalidActionError(
                f"an action is a str, the assistant's next turn; got {type(action).__name__} {action!r:.80}"
            )
        if self.tool_env.stop_condition is not None:
            raise ResetNeeded("the episode is over; call env.reset()")
        repair = self._episode.repair
        self._episode.phase = "idle"
        if repair is not None and not self.tool_env.tool_format.parse(action).has_call:
            return self._abandon(repair, action)
        turn_before = self.tool_env.turn
        history = repair.history if repair else self.tool_env.conversation
        observation, reward, terminated, truncated, info = self._step_inside(action)
        self._episode.raw += observation[len(repair.lookahead if repair else history) :]
        status = info["tool_status"]
        if (
            info["stop_condition"] == "infrastructure_error"
            or not self._episode.enabled
            or info["parsed_action"] == "answer"
        ):
            return observation, reward, terminated, truncated, self._with_saar(info)
        turn = Turn(action, observation[-1]["content"])
        if repair is None:
            if status not in self._on_errors or self._max_retries == 0:
                return observation, reward, terminated, truncated, self._with_saar(info)
            return self._look_ahead(Repair(history, [turn], turn, turn_before))
        purification = purify(
            repair.history,
            repair.current,
            turn,
            self._threshold,
            tool_format=self.tool_env.tool_format,
            similarity=self._similarity,
        )
        repair.similarity = purification.similarity
        if status == "ok":
            return self._replace(repair, turn, purification)
        repair.failures.append(turn)
        repair.current = purification.turn
        if repair.attempts >= self._max_retries:
            return self._finish(repair, "failed", repair.lookahead)
        return self._look_ahead(repair)

    def truncate(self) -> Transition:
        """Ends the episode because the agent's context is full, as `ToolUseEnv.truncate` does.

        An error that is being repaired stays in the history and counts as a turn; its repair has no outcome.

        Raises:
            ResetNeeded: The episode is over or has not begun.
        """
        repair = self._episode.repair
        if repair is not None and self.tool_env.stop_condition is None:
            self.tool_env.rewrite(repair.lookahead, repair.turn_before + 1, hold=True)
            self._close_repair(repair, None)
        observation, reward, terminated, truncated, info = self.tool_env.truncate()
        self._episode.phase = "idle"
        return observation, reward, terminated, truncated, self._with_saar(info)

    def _step_inside(self, action: str) -> Transition:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated, info

    def _look_ahead(self, repair: Repair) -> Transition:
        if self._episode.repair is None:
            self._episode.repair = repair
            self._episode.repairs.append(repair)
        self._episode.phase = "lookahead"
        return self._rewrite(repair.lookahead, repair.turn_before, hold=True)

    def _replace(self, repair: Repair, correction: Turn, purification: Purification) -> Transition:
        repair.correction = correction
        repair.purified = purification.turn
        return self._finish(repair, purification.decision, purification.conversation)

    def _finish(self, repair: Repair, outcome: Outcome, conversation: Conversation) -> Transition:
        self._close_repair(repair, outcome)
        return self._rewrite(conversation, repair.turn_before + 1)

    def _abandon(self, repair: Repair, answer: str) -> Transition:
        """Lets the error stand. The answer counts as the turn after it, where the budget still has one."""
        transition = self._finish(repair, "abandoned", repair.lookahead)
        if transition[3]:
            self._episode.raw.append({"role": "assistant", "content": answer})
            self._episode.hidden_tokens += _tokens(answer)
            return (*transition[:4], self._with_saar(transition[4]))
        observation, reward, terminated, truncated, info = self._step_inside(answer)
        self._episode.raw.append(observation[-1])
        return observation, reward, terminated, truncated, self._with_saar(info)

    def _close_repair(self, repair: Repair, outcome: Outcome | None) -> None:
        episode = self._episode
        repair.outcome = outcome
        episode.repair = None
        episode.phase = outcome or "idle"
        episode.enabled = outcome in ("shallow", "deep")
        written = sum(_tokens(turn.action) for turn in (*repair.failures, *filter(None, [repair.correction])))
        episode.hidden_tokens += written - _tokens((repair.purified or repair.current).action)

    def _rewrite(self, conversation: Conversation, turn: int, hold: bool = False) -> Transition:
        observation, reward, terminated, truncated, info = self.tool_env.rewrite(conversation, turn, hold)
        return observation, reward, terminated, truncated, self._with_saar(info)

    def _with_saar(self, info: dict[str, Any]) -> dict[str, Any]:
        episode = self._episode
        outcomes = Counter(repair.outcome for repair in episode.repairs)
        latest = episode.repairs[-1] if episode.repairs and episode.phase != "idle" else None
        counts = {outcome: outcomes[outcome] for outcome in ("shallow", "deep", "failed", "abandoned")}
        return {
            **info,
            "saar": {
                "enabled": episode.enabled,
                "phase": episode.phase,
                "attempts": latest.attempts if latest else 0,
                "similarity": latest.similarity if latest else None,
                **counts,
                "hidden_tokens": episode.hidden_tokens,
            },
        }


def _tokens(action: str) -> int:
    return len(action.token_ids) if isinstance(action, Completion) else 0


def _check_env(env: gym.Env[Any, Any]) -> None:
    if not isinstance(env, gym.Env) or not isinstance(env.unwrapped, ToolUseEnv):
        raise ConfigError(f"SAARWrapper needs a ToolUseEnv with a conversation to rewrite, got {env!r:.200}")
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, SAARWrapper):
            raise ConfigError("this environment is wrapped in SAARWrapper already; wrap it once")
        inner = inner.env


def _check_arguments(threshold: float, max_retries: int, probability: float, on_errors: Collection[str]) -> None:
    for name, value in (("similarity_threshold", threshold), ("rollback_probability", probability)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigError(f"{name} must lie in [0, 1], got {value!r}")
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise ConfigError(f"max_retries must be an int of at least 0, got {max_retries!r}")
    if isinstance(on_errors, str) or not isinstance(on_errors, Collection):
        raise ConfigError(f"on_errors must be a collection of names among {sorted(MODEL_ERRORS)}, got {on_errors!r:.80}")
    unknown = [name for name in on_errors if not isinstance(name, str) or name not in MODEL_ERRORS]
    if unknown:
        raise ConfigError(f"on_errors must be among {sorted(MODEL_ERRORS)}, got {unknown!r:.80}")
