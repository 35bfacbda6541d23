"""Problems, tasks and data sets: what is asked, how it is put to the model, and how an answer is graded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from cleaner_env.conversation import Conversation
from cleaner_env.grading.verdict import Grade

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["Dataset", "LazyProblems", "Problem", "Task"]


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        id: Unique within its data set.
        prompt: What is asked, without instructions about tools or the form of the answer.
        answer: The reference that the task's grader takes; never shown to the model or the sandbox.
        metadata: Anything else, such as difficulty, options or tests.
    """

    id: str
    prompt: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LazyProblems(Sequence[Problem]):
    """Problems that are made when they are looked up.

    Attributes:
        numbers: The numbers of the problems, in order.
        make: Makes the problem of a number, the same one each time.

    Example:
        >>> problems = LazyProblems(range(10**6), lambda number: Problem(str(number), f"{number} + 1 =", str(number + 1)))
        >>> problems[-1].answer, len(problems[::2])
        ('1000000', 500000)
    """

    numbers: Sequence[int]
    make: Callable[[int], Problem]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return LazyProblems(self.numbers[index], self.make)
        try:
            number = self.numbers[index]
        except IndexError:
            raise IndexError(f"problem {index} of {len(self)}") from None
        return self.make(number)


@dataclass(frozen=True)
class Dataset:
    """A named sequence of problems.

    Attributes:
        name: The name or path that it was loaded by.
        problems: The problems; any sequence, so that generated ones need not be held in memory.
        fingerprint: SHA-256 of the content in hex, so that a score can say what it was measured on.
        left_out: How many rows of its files are no problems of it, by reason.
    """

    name: str
    problems: Sequence[Problem]
    fingerprint: str
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and short fingerprint, as ``info["dataset"]`` shows it."""
        return f"{self.name}@{self.fingerprint[:12]}"


class Task(ABC):
    """A kind of problem.

    A subclass says how its data sets are loaded, how a problem becomes the first messages of a conversation, and how the
    final turn is graded.
    """

    name: str

    @abstractmethod
    def load(self, dataset: str, split: str | None = None) -> Dataset:
        """Loads problems by the name of a data set or the path of a local file.

        Raises:
            DataError: No such data set or split, or the file is malformed; the message names the line.
        """

    @abstractmethod
    def messages(self, problem: Problem) -> Conversation:
        """Returns the system and user messages that put the problem; the environment adds how to call the tool."""

    @abstractmethod
    def grade(self, problem: Problem, turn: str, sandbox: Sandbox) -> Grade:
        """Grades a final turn. ``sandbox`` is there for tasks whose answers are programs."""

    def prelude(self, problem: Problem) -> str:
        """Returns code that every session runs before the first call; empty by default."""
        del problem
        return ""

    def check_tool_format(self, name: str) -> None:
        """Refuses a tool format that this task's answers would be mistaken for; by default all are fine.

        Raises:
            ConfigError: The format cannot be used.
        """
        del name
