"""Tasks: what is asked, how it is put to the model, and how an answer is graded."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from cleaner_env.errors import ConfigError
from cleaner_env.tasks.base import Dataset, Problem, Task

__all__ = ["TASKS", "Dataset", "Problem", "Task", "get_task"]

_CLASSES: Final = {
    "aime": ("cleaner_env.tasks.aime", "AIMETask"),
    "gpqa": ("cleaner_env.tasks.gpqa", "GPQATask"),
    "livecodebench": ("cleaner_env.tasks.livecodebench", "LiveCodeBenchTask"),
    "arithmetic": ("cleaner_env.tasks.arithmetic", "ArithmeticTask"),
}
TASKS: Final = tuple(_CLASSES)
"""The names that `get_task` knows."""


def get_task(name: str | Task) -> Task:
    """Returns the task of this name; a `Task` is returned as it is.

    Raises:
        ConfigError: There is no such task.

    Example:
        >>> get_task("aime").name
        'aime'
    """
    if isinstance(name, Task):
        return name
    if name not in _CLASSES:
        raise ConfigError(f"unknown task {name!r}; choose one of {', '.join(TASKS)}")
    module, class_name = _CLASSES[name]
    task = getattr(import_module(module), class_name)()
    assert isinstance(task, Task)
    return task
