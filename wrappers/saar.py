"""`SAARWrapper`: purifies the history of an episode while it is collected.

Source: arXiv 2601.15141, Similarity-Aware Adaptive Rollback. The rule itself is `purify`, a pure function;
`cleaner_env.wrappers.purifier` decides when it is applied and knows no environment. This file gives an environment the
history that comes of it.

======================  =================================================================================
``info["saar"]``        meaning
======================  =================================================================================
enabled                 whether failed calls of this episode are replaced; turns false when a repair fails or
                        is given up
phase                   ``"idle"``, ``"lookahead"`` (the next action is a correction), ``"shallow"``,
                        ``"deep"`` (a turn was just replaced), ``"failed"``, ``"abandoned"``
attempts                corrections tried for the current or just finished repair
similarity              of the failed and the corrected code in the last replacement, else ``None``
shallow, deep, failed,  repairs of this episode that ended so
abandoned
masked                  turns of the history that are to be left out of the loss (strategy ``"mask"``)
hidden_tokens           sampled tokens of this episode that no longer stand in its history
======================  =================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv, Transition
from cleaner_env.env_arguments import checked_options
from cleaner_env.errors import ConfigError, InvalidActionError
from cleaner_env.wrappers.purification import Turn, purify
from cleaner_env.wrappers.purifier import MODEL_ERRORS, PurificationRule, Purifier, Repair, checked_share
from cleaner_env.wrappers.similarity import Similarity, code_similarity, get_similarity, reference_similarity

__all__ = ["MODEL_ERRORS", "Repair", "SAARWrapper", "code_similarity", "purify"]


class SAARWrapper(gym.Wrapper[Conversation, str, Conversation, str], gym.utils.RecordConstructorArgs):
    """Rewrites the history of an episode so that a repaired tool call looks right at the first attempt.

    It goes directly onto what ``gym.make`` returns, below any wrapper that changes, counts or records steps.

    Args:
        env: A `ToolUseEnv`, possibly inside the wrappers of ``gym.make``. Its ``max_episode_steps`` counts every step,
            corrections included; an error that is under repair at the last one stays, as in `truncate`. A wrapper of your
            own may lie between the two where it leaves observations, rewards and ``info`` as they are.
        similarity_threshold: Similarity in [0, 1] from which on a replacement is shallow. The paper uses 0.5.
        max_retries: Corrections tried for one error. The paper uses 3.
        rollback_probability: Share of episodes that are purified, drawn at ``reset`` from the environment's generator; the
            others run as though there were no wrapper. ``reset(options={"saar": bool})`` decides for one episode.
        similarity: How pieces of code are compared: a name among `cleaner_env.wrappers.similarity.SIMILARITIES`, or a
            function.
        on_errors: The values of ``tool_status`` that start a repair; all of `MODEL_ERRORS` by default.
        reference_compatible: Chooses between shallow and deep as the reference implementation does, by ``"reference"``.
        strategy: What becomes of failed calls, for ablations: one of `cleaner_env.wrappers.purifier.STRATEGIES`.

    Raises:
        ConfigError: An argument is out of range, or ``env`` has no history to rewrite, is wrapped already, or lies in a
            wrapper that belongs around this one.

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
        strategy: str = "saar",
    ) -> None:
        _check_env(env)
        rollback_probability = checked_share("rollback_probability", rollback_probability)
        if not isinstance(reference_compatible, bool):
            raise ConfigError(f"reference_compatible must be True or False, got {reference_compatible!r:.80}")
        if reference_compatible and get_similarity(similarity) not in (code_similarity, reference_similarity):
            raise ConfigError(
                f"reference_compatible chooses the similarity itself; leave out similarity={similarity!r:.80}"
            )
        compared_by = reference_similarity if reference_compatible else similarity
        rule = PurificationRule(strategy, similarity_threshold, max_retries, compared_by, on_errors)
        # Whatever has its default value is left out, so that the spec can be written as JSON.
        chosen: dict[str, Any] = {} if similarity is code_similarity else {"similarity": similarity}
        if frozenset(on_errors) != MODEL_ERRORS:
            chosen["on_errors"] = sorted(on_errors)
        if reference_compatible:
            chosen["reference_compatible"] = True
        if strategy != "saar":
            chosen["strategy"] = strategy
        gym.utils.RecordConstructorArgs.__init__(
            self,
            similarity_threshold=rule.similarity_threshold,
            max_retries=rule.max_retries,
            rollback_probability=rollback_probability,
            **chosen,
        )
        gym.Wrapper.__init__(self, env)
        self._rule = rule
        self._probability = rollback_probability
        self._purifier = self._begin((), False)

    def __getstate__(self) -> dict[str, Any]:
        # The environment underneath begins anew when it is copied or unpickled, and so does this.
        return {**vars(self), "_purifier": self._begin((), False)}

    @property
    def tool_env(self) -> ToolUseEnv:
        """The environment underneath."""
        env = self.unwrapped
        assert isinstance(env, ToolUseEnv)
        return env

    @property
    def rule(self) -> PurificationRule:
        """What is purified, and how."""
        return self._rule

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """Every repair of this episode, in order, finished or not."""
        return tuple(self._purifier.repairs)

    @property
    def masked_turns(self) -> tuple[int, ...]:
        """The turns of the history that are to be left out of the loss, counted from 0 among the assistant's."""
        return tuple(self._purifier.masked_turns)

    @property
    def raw_turns(self) -> tuple[Turn, ...]:
        """Everything the assistant said in this episode, in order, and what became of it."""
        return tuple(self._purifier.turns)

    @property
    def raw_conversation(self) -> Conversation:
        """Everything that was said in this episode, in order: failed calls, errors and corrections included."""
        return self._purifier.raw_conversation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        """Begins an episode and decides whether it is purified.

        Args:
            seed: As in Gymnasium.
            options: ``{"saar": bool}`` decides; otherwise ``rollback_probability`` does. Other keys are the environment's.

        Raises:
            ConfigError: ``options`` is no mapping, or ``options["saar"]`` no ``bool``.
        """
        options = checked_options(options)
        chosen = options.pop("saar", None)
        if chosen is not None and not isinstance(chosen, bool):
            raise ConfigError(f"options['saar'] must be True or False, got {chosen!r}")
        observation, info = self.env.reset(seed=seed, options=options)
        if chosen is None:
            # No draw where there is nothing to decide, so that the problems are those of the bare environment.
            certain = self._probability in (0, 1)
            chosen = self._probability == 1 if certain else bool(self.tool_env.np_random.random() < self._probability)
        self._purifier = self._begin(observation, chosen)
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
        purifier = self._purifier
        made = purifier.consider(action)
        if purifier.repair is not None and made is None:
            purifier.give_up()
            transition = self._rewrite()
            if transition[3]:
                purifier.answer_too_late(action)
                return (*transition[:4], self._with_saar(transition[4]))
        repairing = purifier.repair is not None
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = self.env.step(action)
        answer = observation[-1]["content"] if observation[-1]["role"] == "tool" else None
        turn = Turn(action, answer, info["tool_status"], info["error_type"], time.perf_counter() - began)
        purifier.take(turn, made)
        limited = truncated and self.tool_env.stop_condition is None  # by a TimeLimit underneath
        if limited and purifier.repair is not None:
            purifier.end()
        if repairing or purifier.repair is not None:
            observation, reward, terminated, truncated, info = self._rewrite()
        return observation, float(reward), terminated, truncated or limited, self._with_saar(info)

    def truncate(self) -> Transition:
        """Ends the episode because the agent's context is full, as `ToolUseEnv.truncate` does.

        An error that is being repaired stays in the history and counts as a turn; its repair has no outcome.

        Raises:
            ResetNeeded: The episode is over or has not begun.
        """
        if self.tool_env.stop_condition is None:
            repairing = self._purifier.repair is not None
            self._purifier.end()
            if repairing:
                self.tool_env.rewrite(self._purifier.conversation, self._purifier.turn, hold=True)
        observation, reward, terminated, truncated, info = self.tool_env.truncate()
        return observation, reward, terminated, truncated, self._with_saar(info)

    def _begin(self, start: Conversation, enabled: bool) -> Purifier:
        return Purifier(start, self.tool_env.tool_format, self._rule, enabled)

    def _rewrite(self) -> Transition:
        """Gives the environment the purifier's history; a failure that is being repaired is no accepted turn yet."""
        purifier = self._purifier
        return self.tool_env.rewrite(purifier.conversation, purifier.turn, hold=purifier.repair is not None)

    def _with_saar(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "saar": self._purifier.as_info()}


_PASSING: Final = (PassiveEnvChecker, OrderEnforcing, TimeLimit)
"""The wrappers that ``gym.make`` puts around an environment."""
_CHANGING: Final = (gym.ActionWrapper, gym.ObservationWrapper, gym.RewardWrapper)


def _check_env(env: gym.Env[Any, Any]) -> None:
    if not isinstance(env, gym.Env) or not isinstance(env.unwrapped, ToolUseEnv):
        raise ConfigError(f"SAARWrapper needs a ToolUseEnv with a conversation to rewrite, got {env!r:.200}")
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, SAARWrapper):
            raise ConfigError("this environment is wrapped in SAARWrapper already; wrap it once")
        known = isinstance(inner, _CHANGING) or type(inner).__module__.startswith(("gymnasium.", "cleaner_env."))
        if known and not isinstance(inner, _PASSING):
            name = type(inner).__name__
            raise ConfigError(
                f"{name} lies under SAARWrapper, which takes back turns that {name} has seen; "
                f"put it around: {name}(SAARWrapper(env))"
            )
        inner = inner.env
