"""`ToolUseEnv`: a problem, a Python tool, and a conversation between them, as a Gymnasium environment.

One step is one assistant turn. A turn with a tool call is executed and its output appended to the conversation; a turn
without one is the final answer, which is graded and ends the episode.

Keys of ``info``, always all of them (``None`` where there is nothing to say):

=====================  ==================================================================================
problem_id, dataset    what is being asked; the data set with a short content hash
sandbox                the backend that runs the code
turn                   assistant turns in the conversation
parsed_action          ``"call"``, ``"malformed"`` (a call that does not parse) or ``"answer"``
tool_called            whether code was executed in this step
tool_status            the `Status` of the execution, or ``"malformed"``
error_type             the exception's class, or the status where there is no exception
verdict                the `Verdict`, once the episode is over
extracted_answer       the answer that was graded
stop_condition         ``"answered"``, ``"max_turns"``, ``"time_limit"``, ``"context_length"`` (the agent
                       ran out of context and called `ToolUseEnv.truncate`) or ``"infrastructure_error"``
=====================  ==================================================================================

At the end of an episode also these totals. They count what was really executed, so purification does not change them:

=====================  ==================================================================================
num_turns              assistant turns in the final conversation
tool_calls             calls made, malformed ones included
tool_errors            calls that failed
first_attempt_total    calls that did not follow a failed call
first_attempt_success  those of them that ran
recovered_errors       failed calls whose next call ran
tool_failure_reasons   how often each ``error_type`` occurred
=====================  ==================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium as gym
from gymnasium.error import ResetNeeded

from cleaner_env.conversation import Conversation, Message, copy_conversation
from cleaner_env.env_arguments import check_arguments, checked_options, choose_problem
from cleaner_env.episode_totals import EpisodeTotals
from cleaner_env.errors import InvalidActionError, SandboxError, UsageError
from cleaner_env.grading import Grade
from cleaner_env.observation import describe_execution
from cleaner_env.sandbox import Execution, Limits, Sandbox, Session, shared_sandbox
from cleaner_env.spaces import ConversationSpace, UtteranceSpace
from cleaner_env.tasks import Problem, Task, get_task
from cleaner_env.tool_calls import ParsedTurn, ToolFormat, get_tool_format

__all__ = ["MALFORMED", "ToolUseEnv", "Transition"]

MALFORMED = "malformed"
"""The ``tool_status`` of a call that does not parse."""

StopCondition: TypeAlias = Literal["answered", "max_turns", "time_limit", "context_length", "infrastructure_error"]
Transition: TypeAlias = tuple[Conversation, float, bool, bool, dict[str, Any]]
"""What ``step`` returns: observation, reward, terminated, truncated, info."""


@dataclass(frozen=True)
class _LastStep:
    """What the latest step did, for ``info``."""

    parsed_action: Literal["call", "malformed", "answer"] | None = None
    tool_status: str | None = None
    error_type: str | None = None


class ToolUseEnv(gym.Env[Conversation, str]):
    """A tool-use task as an environment.

    Observations are whole conversations (`ConversationSpace`), actions are assistant turns (`UtteranceSpace`). A copied or
    unpickled environment is a new one, made with the same arguments.

    Args:
        task: A `Task`, or the name of one: ``"aime"``, ``"gpqa"``, ``"livecodebench"``, ``"arithmetic"``.
        dataset: The name of a data set, or the path of a problem file.
        split: A split of the data set; ``None`` for its default.
        sandbox: ``"auto"``, the name of a backend, or a `Sandbox` that the caller keeps open. Environments that name the
            same backend with the same options share one.
        sandbox_options: Options for `make_sandbox`.
        tool_format: ``"hermes"``, ``"python"`` or a `ToolFormat`.
        max_turns: Assistant turns in an episode, the answer included.
        time_limit_s: Seconds on the clock for an episode; ``None`` for no limit.
        reward: The rewards of a wrong and a right outcome. Steps before the end give 0.
        limits: What one call may use.
        error_detail: ``"traceback"`` shows the model whole tracebacks, ``"message"`` their last line.
        max_output_chars: Characters of tool output that the model is shown; the middle of longer output is cut.
        render_mode: ``None``, ``"ansi"`` or ``"human"``.

    Raises:
        ConfigError: An argument is out of range or names nothing.
        DataError: The data set cannot be loaded.

    Example:
        >>> import cleaner_env, gymnasium as gym
        >>> env = gym.make("CleanerArithmetic-v0")
        >>> conversation, info = env.reset(seed=7)
        >>> conversation, reward, terminated, truncated, info = env.step("```python\\nprint(6 * 7)\\n```")
        >>> conversation[-1], info["tool_status"], terminated
        ({'role': 'tool', 'content': '42'}, 'ok', False)
        >>> env.close()
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it as an instance attribute
        "render_modes": ["ansi", "human"],
        "render_fps": 4,
    }

    def __init__(
        self,
        task: str | Task,
        dataset: str = "builtin",
        split: str | None = None,
        sandbox: str | Sandbox = "auto",
        sandbox_options: Mapping[str, Any] | None = None,
        tool_format: str | ToolFormat = "hermes",
        max_turns: int = 16,
        time_limit_s: float | None = None,
        reward: Sequence[float] = (0.0, 1.0),
        limits: Limits | None = None,
        error_detail: Literal["traceback", "message"] = "traceback",
        max_output_chars: int = 4096,
        render_mode: str | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        check_arguments(self._arguments, self.metadata["render_modes"])
        self.task = get_task(task) if isinstance(task, str) else task
        self.tool_format = get_tool_format(tool_format)
        self.task.check_tool_format(self.tool_format.name)
        self.dataset = self.task.load(dataset, split)
        self.max_turns = max_turns
        self.time_limit_s = time_limit_s
        self.render_mode = render_mode
        self.observation_space = ConversationSpace()
        self.action_space = UtteranceSpace()
        self._borrows_sandbox = isinstance(sandbox, str)
        self.sandbox = shared_sandbox(sandbox, **(sandbox_options or {})) if isinstance(sandbox, str) else sandbox
        self._rewards = (float(reward[0]), float(reward[1]))
        self._limits = limits or Limits()
        self._error_detail = error_detail
        self._max_output_chars = max_output_chars
        self._problem: Problem | None = None
        self._session: Session | None = None
        self._closed = False
        self._begin(())

    def __getstate__(self) -> dict[str, Any]:
        if not self._borrows_sandbox:
            raise UsageError(
                "an environment that was given an open Sandbox cannot be copied or pickled; name a backend instead, "
                'such as sandbox="local"'
            )
        return {"arguments": self._arguments, "spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ToolUseEnv.__init__(self, **state["arguments"])
        self.spec = state["spec"]

    def _begin(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._turn = 0
        self._totals = EpisodeTotals()
        self._last = _LastStep()
        self._grade: Grade | None = None
        self._infrastructure_error = False
        self._held = False
        self._timed_out = False
        self._out_of_context = False
        self._step_began = self._held_since = time.monotonic()
        self._deadline = float("inf") if self.time_limit_s is None else time.monotonic() + self.time_limit_s
        self._rendered = 0

    @property
    def problem(self) -> Problem:
        """The problem of the current episode.

        Raises:
            ResetNeeded: There is none yet.
        """
        if self._problem is None:
            raise ResetNeeded("call env.reset() before asking for its problem")
        return self._problem

    @property
    def conversation(self) -> Conversation:
        """The conversation so far, as the agent sees it."""
        return copy_conversation(self._conversation)

    @property
    def turn(self) -> int:
        """Assistant turns in the conversation."""
        return self._turn

    @property
    def stop_condition(self) -> StopCondition | None:
        """Why the episode is over, ``None`` while it runs."""
        if self._infrastructure_error:
            return "infrastructure_error"
        if self._grade is not None:
            return "answered"
        if self._out_of_context:
            return "context_length"
        if self._held:
            return None
        if self._turn >= self.max_turns:
            return "max_turns"
        return "time_limit" if self._timed_out else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        """Begins an episode on a problem drawn from the seeded generator, or on a chosen one.

        Args:
            seed: Seeds the generator that problems are drawn from.
            options: ``{"index": i}`` or ``{"problem_id": id}`` chooses a problem. Other keys are left to wrappers.

        Returns:
            The system and user messages, and ``info``.

        Raises:
            ConfigError: No problem has this index or id, or ``options`` is no mapping.
            UsageError: The environment is closed.
        """
        self._require_open()
        super().reset(seed=seed)
        problem = choose_problem(self.dataset, checked_options(options), self.np_random)
        self._close_session()
        self._problem = problem
        self._begin(self._first_messages())
        if self.render_mode == "human":
            self.render()
        return self.conversation, self._info()

    def _first_messages(self) -> Conversation:
        messages = copy_conversation(self.task.messages(self.problem))
        if messages[0]["role"] != "system":
            return ({"role": "system", "content": self.tool_format.instructions}, *messages)
        system = f"{messages[0]['content']}\n\n{self.tool_format.instructions}".strip()
        return ({"role": "system", "content": system}, *messages[1:])

    def step(self, action: str) -> Transition:
        """Takes one assistant turn.

        Args:
            action: The turn. A `Completion` is kept as it is in the conversation.

        Returns:
            The 5-tuple of Gymnasium. ``terminated``: an answer was given and graded. ``truncated``: the budget of turns or
            seconds is spent, or the infrastructure failed.

        Raises:
            InvalidActionError: The action is not a ``str``.
            ResetNeeded: The episode is over or has not begun.
            UsageError: The environment is closed.
        """
        if not isinstance(action, str):
            raise InvalidActionError(
                f"an action is a str, the assistant's next turn; got {type(action).__name__} {action!r:.80}"
            )
        self._require_running()
        self._step_began = time.monotonic()
        parsed = self.tool_format.parse(action)
        self._append({"role": "assistant", "content": action})
        self._turn += 1
        if parsed.has_call:
            self._call_tool(parsed)
        else:
            self._answer(action)
        self._timed_out = time.monotonic() >= self._deadline
        if self.render_mode == "human":
            self.render()
        return self._transition()

    def rewrite(self, conversation: Sequence[Message], turn: int, hold: bool = False) -> Transition:
        """Replaces the history of the running episode, as purification does.

        The interpreter is left as it is, so what the new history shows must be what really ran there.

        Args:
            conversation: The new history.
            turn: The number of assistant turns that it counts for.
            hold: Suspends the budgets until a `rewrite` without it, for a lookahead that is not an accepted turn. The
                seconds that attempts took count for the last one only.

        Returns:
            What `step` would return had the new history come about by stepping.
        """
        if hold and not self._held:
            self._held_since = self._step_began
        if self._held and not hold:
            # Of all attempts at this turn only the last one's time counts.
            self._deadline += self._step_began - self._held_since
            self._timed_out = time.monotonic() >= self._deadline
        self._conversation = copy_conversation(conversation)
        self._turn = turn
        self._held = hold
        self._rendered = min(self._rendered, len(self._conversation))
        return self._transition()

    def truncate(self) -> Transition:
        """Ends the episode because the agent's context is full, and returns the last transition.

        Raises:
            ResetNeeded: The episode is over or has not begun.
        """
        self._require_running()
        self._out_of_context = True
        return self._transition()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("this environment is closed; make another one")

    def _require_running(self) -> None:
        self._require_open()
        if self._problem is None or self.stop_condition is not None:
            raise ResetNeeded("the episode is over or has not begun; call env.reset()")

    def _append(self, message: Message) -> None:
        self._conversation = (*self._conversation, message)

    def _call_tool(self, parsed: ParsedTurn) -> None:
        if parsed.code is None:
            self._last = _LastStep("malformed", MALFORMED, "MalformedCall")
            output = f"Error: {parsed.malformed}"
        else:
            execution = self._execute(parsed.code)
            error_type = None if execution.ok else execution.exception.name if execution.exception else execution.status
            self._last = _LastStep("call", execution.status, error_type)
            if execution.status == "infrastructure_error":
                self._infrastructure_error = True
                return
            output = describe_execution(execution, self._limits, self._error_detail, self._max_output_chars)
        self._totals.record(self._last.error_type)
        self._append({"role": "tool", "content": output})

    def _execute(self, code: str) -> Execution:
        try:
            if self._session is None:
                self._session = self.sandbox.open()
                prelude = self.task.prelude(self.problem)
                if prelude:
                    execution = self._session.run(prelude, limits=self._limits)
                    if not execution.ok:
                        return Execution("infrastructure_error", stderr=f"the task's prelude failed: {execution.stderr}")
            return self._session.run(code, limits=self._limits)
        except SandboxError as error:
            return Execution("infrastructure_error", stderr=str(error))

    def _answer(self, action: str) -> None:
        self._last = _LastStep("answer")
        grade = self.task.grade(self.problem, action, self.sandbox)
        self._grade = grade
        self._infrastructure_error = grade.verdict == "infrastructure_error"

    def _transition(self) -> Transition:
        stop = self.stop_condition
        over = stop is not None
        reward = self._rewards[self._grade is not None and self._grade.correct] if over else 0.0
        if stop == "infrastructure_error":
            reward = 0.0
        # After the last turn of a budget the interpreter stays, for `rewrite` may take that turn back.
        if over and stop not in ("max_turns", "time_limit"):
            self._close_session()
        return self.conversation, reward, stop == "answered", over and stop != "answered", self._info()

    def _info(self) -> dict[str, Any]:
        stop = self.stop_condition
        grade = self._grade
        verdict = None
        if stop is not None:
            verdict = "infrastructure_error" if self._infrastructure_error else grade.verdict if grade else "no_answer"
        info: dict[str, Any] = {
            "problem_id": self.problem.id,
            "dataset": self.dataset.label,
            "sandbox": self.sandbox.name,
            "turn": self._turn,
            "parsed_action": self._last.parsed_action,
            "tool_called": self._last.parsed_action == "call",
            "tool_status": self._last.tool_status,
            "error_type": self._last.error_type,
            "verdict": verdict,
            "extracted_answer": grade.extracted if grade else None,
            "stop_condition": stop,
        }
        if stop is not None:
            info |= {"num_turns": self._turn, **self._totals.as_info()}
        return info

    def render(self) -> str | None:
        """Returns the conversation as text (``"ansi"``) or prints what is new of it (``"human"``)."""
        if self.render_mode == "human":
            new, self._rendered = self._conversation[self._rendered :], len(self._conversation)
            print("".join(_render_message(message) for message in new), end="", flush=True)
            return None
        if self.render_mode == "ansi":
            return "".join(_render_message(message) for message in self._conversation)
        gym.logger.warn('render() needs a render mode: gym.make(..., render_mode="ansi")')
        return None

    def close(self) -> None:
        """Ends the episode's interpreter, and the sandbox where no other environment shares it. May be called twice."""
        self._closed = True
        self._close_session()
        if self._borrows_sandbox:
            self.sandbox.close()

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _render_message(message: Message) -> str:
    return f"[{message['role']}]\n{message['content']}\n\n"
