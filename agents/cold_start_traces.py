"""Episodes of a careless programmer who mends what an error message points out: what a cold start is trained on.

The first attempt at a call nearly always fails, in one of several ways; the attempt after an error is nearly always right.
With one call to spare that makes success without purification a matter of luck, while the means to succeed are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from cleaner_env.conversation import Conversation, Message
from cleaner_env.tasks.arithmetic import Step
from cleaner_env.tool_calls import ToolFormat

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MISTAKES", "Carelessness", "Trace", "correct_code", "write_answer_drill", "write_call_drill", "write_trace"]


@dataclass(frozen=True)
class Carelessness:
    """How often the programmer of the traces goes wrong.

    Attributes:
        first_attempt: Probability that the first attempt at a call fails.
        repair: Probability that an attempt after an error fails again.
        rewritten: Probability that a call of a purified history came from a deep replacement, reasoning included.
    """

    first_attempt: float = 0.98
    repair: float = 0.08
    rewritten: float = 0.15


@dataclass(frozen=True)
class Trace:
    """An episode to learn from.

    Attributes:
        conversation: The whole of it, to the final answer.
        learn: For each assistant turn, whether the model learns to write it or only to read it.
    """

    conversation: Conversation
    learn: tuple[bool, ...]


def correct_code(step: Step) -> str:
    """Returns the call that defines a step's variable and prints it."""
    return f"{step.variable} = {step.expression}\nprint({step.variable})"


MISTAKES: Final[dict[str, Callable[[Step], str]]] = {
    "unknown function": lambda step: f"{step.variable} = {step.expression}\nshow({step.variable})",
    "unknown variable": lambda step: f"{step.variable} = {step.expression}\nprint(result)",
    "comparison for assignment": lambda step: f"{step.variable} == {step.expression}\nprint({step.variable})",
    "unclosed parenthesis": lambda step: f"{step.variable} = {step.expression}\nprint({step.variable}",
    "no parentheses": lambda step: f"{step.variable} = {step.expression}\nprint {step.variable}",
    "no code": lambda step: f"solve({step.variable})",
}
"""Ways to get a call wrong, each of which raises."""


def write_trace(
    opening: Sequence[Message],
    steps: Sequence[Step],
    purified: int,
    observe_mistake: Callable[[str, Step], str],
    tool_format: ToolFormat,
    carelessness: Carelessness,
    rng: np.random.Generator,
) -> Trace:
    """Writes one episode.

    Args:
        opening: The conversation that the environment begins with.
        steps: The problem's chain.
        purified: Calls at the beginning that read as a purified history does, free of errors; they are not learned.
        observe_mistake: What the tool answers, by the name of a mistake and the step.
        tool_format: How calls are written.
        carelessness: How often attempts fail.
        rng: Source of all choices.
    """
    conversation = list(opening)
    learn: list[bool] = []

    def say(turn: str, learned: bool, observation: str | None = None) -> None:
        conversation.append({"role": "assistant", "content": turn})
        learn.append(learned)
        if observation is not None:
            conversation.append({"role": "tool", "content": observation})

    for number, step in enumerate(steps):
        attempt = f"Compute {step.variable}.\n"
        repair = f"Fix {step.variable}.\n"
        if number < purified:
            reasoning = repair if rng.random() < carelessness.rewritten else attempt
            say(tool_format.render(reasoning, correct_code(step)), False, str(step.value))
            continue
        reasoning, failure_rate = attempt, carelessness.first_attempt
        while rng.random() < failure_rate:
            mistake = list(MISTAKES)[rng.integers(len(MISTAKES))]
            say(tool_format.render(reasoning, MISTAKES[mistake](step)), True, observe_mistake(mistake, step))
            reasoning, failure_rate = repair, carelessness.repair
        say(tool_format.render(reasoning, correct_code(step)), True, str(step.value))
    say(f"\\boxed{{{steps[-1].value}}}", True)
    return Trace(tuple(conversation), tuple(learn))


def write_call_drill(rng: np.random.Generator) -> tuple[str, str]:
    """Writes an exercise in copying: definitions, then the calls that they take.

    Traces are much alike, so they teach copying slowly; here nearly every line holds something to copy. The calls are those
    that mend an error, so that first attempts are learned from the traces alone.

    Returns:
        What to read, and what to learn to write after it.
    """
    count = int(rng.integers(3, 9))
    start = int(rng.integers(len(ascii_lowercase) - count))
    names = ascii_lowercase[start : start + count]
    lefts = [str(rng.integers(3, 10)), *names]
    symbols = ["**", *rng.choice(["+", "-", "*"], count - 1)]
    steps = [
        Step(name, left, str(symbol), int(rng.integers(2, 10)), 0)
        for name, left, symbol in zip(names, lefts, symbols, strict=False)
    ]
    definitions = "\n".join(f"{step.variable} = {step.expression}" for step in steps)
    calls = "\n".join(f"Fix {step.variable}.\n```python\n{correct_code(step)}\n```" for step in steps)
    return f"Find {names[-1]}, given:\n{definitions}\n", calls


def write_answer_drill(rng: np.random.Generator, numbers: int = 6) -> Conversation:
    """Writes an exercise in copying: outputs of the tool, each repeated in a box."""
    conversation: list[Message] = []
    for _ in range(numbers):
        number = int(rng.integers(10 ** int(rng.integers(2, 8))))
        conversation.append({"role": "tool", "content": str(number)})
        conversation.append({"role": "assistant", "content": f"\\boxed{{{number}}}"})
    return tuple(conversation)
