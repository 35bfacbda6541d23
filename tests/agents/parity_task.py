"""A task that a model of random weights solves half of the time, so that there is something to learn from."""

import gymnasium as gym

from cleaner_env.grading import Grade
from cleaner_env.tasks import Dataset, Problem, Task

ENV_ID = "CleanerParity-v0"


class ParityTask(Task):
    """The answer is right where it has an even number of characters."""

    name = "parity"

    def load(self, dataset, split=None):
        problems = tuple(Problem(f"{split}-{number}", f"Say something, {number}.", "") for number in range(8))
        return Dataset(dataset, problems, "0" * 64)

    def messages(self, problem):
        return ({"role": "user", "content": problem.prompt},)

    def grade(self, problem, turn, sandbox):
        return Grade("incorrect" if len(turn) % 2 else "correct", turn)


def register():
    if ENV_ID not in gym.registry:
        arguments = {"task": ParityTask(), "tool_format": "python", "max_turns": 2}
        gym.register(ENV_ID, entry_point="cleaner_env.env:ToolUseEnv", kwargs=arguments)


register()
