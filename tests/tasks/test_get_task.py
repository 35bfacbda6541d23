import subprocess
import sys

import pytest

from cleaner_env.errors import ConfigError
from cleaner_env.tasks import TASKS, Task, get_task


def test_every_task_has_its_name():
    assert TASKS == ("aime", "gpqa", "livecodebench", "arithmetic")
    for name in TASKS:
        task = get_task(name)
        assert isinstance(task, Task)
        assert task.name == name
        assert get_task(task) is task


@pytest.mark.parametrize("name", ["", "AIME", "math", 3, None])
def test_unknown_tasks_are_refused(name):
    with pytest.raises(ConfigError, match="choose one of aime, gpqa, livecodebench, arithmetic"):
        get_task(name)


@pytest.mark.parametrize("name", ["aime", "gpqa", "livecodebench"])
def test_every_builtin_problem_can_be_asked(name):
    task = get_task(name)
    for problem in task.load("builtin").problems:
        system, user = task.messages(problem)
        assert (system["role"], user["role"]) == ("system", "user")
        assert problem.prompt in user["content"]
        assert task.prelude(problem) == ""


def test_looking_at_the_names_loads_nothing():
    code = "import sys, cleaner_env.tasks; print([m for m in sys.modules if 'builtin' in m and 'cleaner' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
