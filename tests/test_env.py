import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from cleaner_env.conversation import Completion
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import ConfigError, DataError, InvalidActionError, UsageError
from cleaner_env.registration import ENVIRONMENTS
from cleaner_env.sandbox import Limits, make_sandbox
from cleaner_env.wrappers import SAARWrapper


@pytest.fixture
def make_env():
    envs = []

    def make(env_id="CleanerArithmetic-v0", **options):
        envs.append(gym.make(env_id, **options))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


@pytest.fixture
def aime_file(tmp_path):
    path = tmp_path / "exam.jsonl"
    rows = [{"id": f"q{i}", "problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_the_environment_checker_is_content(env_id, make_env):
    check_env(make_env(env_id).unwrapped)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments(env_id, mode):
    envs = gym.make_vec(env_id, num_envs=4, vectorization_mode=mode)
    try:
        conversations, infos = envs.reset(seed=5)
        assert conversations in envs.observation_space
        alone = gym.make(env_id)
        assert conversations[0] == alone.reset(seed=5)[0]
        alone.close()
        assert len(set(infos["problem_id"])) > 1
        actions = tuple(f"I cannot tell. {i}" for i in range(4))
        conversations, rewards, terminated, truncated, infos = envs.step(actions)
        assert [conversation[-1]["content"] for conversation in conversations] == list(actions)
        assert terminated.all()
        assert not truncated.any()
        assert (rewards == 0).all()
        assert list(infos["stop_condition"]) == ["answered"] * 4
    finally:
        envs.close()


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_equal_seeds_give_equal_episodes(env_id, make_env):
    def episode():
        env = make_env(env_id)
        call = env.unwrapped.tool_format.render("", "import random\nprint(random.__name__)")
        broken = env.unwrapped.tool_format.render("", "1 / 0")
        return [env.reset(seed=11), env.step(call), env.step(broken), env.step("done"), env.reset()]

    assert repr(episode()) == repr(episode())


def test_calls_share_an_interpreter_and_errors_are_shown(make_env, python_call):
    env = make_env("CleanerAIME-v0", tool_format="python", sandbox="local")
    conversation, info = env.reset(seed=0)
    assert [message["role"] for message in conversation] == ["system", "user"]
    assert "```python" in conversation[0]["content"]
    assert (info["turn"], info["parsed_action"], info["tool_called"]) == (0, None, False)
    conversation, reward, terminated, truncated, info = env.step(python_call("x = 20", "Set x.\n"))
    assert (conversation[-1], reward, terminated, truncated) == (
        {"role": "tool", "content": "(no output)"},
        0.0,
        False,
        False,
    )
    conversation, *_, info = env.step(python_call("print('hi')\nx + 1"))
    assert conversation[-1]["content"] == "hi\n21"
    assert (info["tool_status"], info["error_type"], info["turn"]) == ("ok", None, 2)
    conversation, *_, info = env.step(python_call("x = 5\nundefined"))
    assert "NameError: name 'undefined' is not defined" in conversation[-1]["content"]
    assert conversation[-1]["content"].startswith("Traceback")
    assert (info["tool_status"], info["error_type"]) == ("error", "NameError")
    conversation, *_ = env.step(python_call("print(x)"))
    assert conversation[-1]["content"] == "20"


def test_malformed_calls_are_told_to_the_model(make_env):
    env = make_env("CleanerAIME-v0")
    env.reset(seed=0)
    conversation, _, terminated, _, info = env.step("<tool_call>\n{oops\n</tool_call>")
    assert conversation[-1]["role"] == "tool"
    assert conversation[-1]["content"].startswith("Error: the tool call is not valid JSON")
    assert (info["parsed_action"], info["tool_called"], info["tool_status"]) == ("malformed", False, "malformed")
    assert not terminated


@pytest.mark.parametrize(
    ("answer", "reward", "verdict", "extracted"),
    [(r"\boxed{4}", 1.0, "correct", "4"), (r"\boxed{5}", -1.0, "incorrect", "5"), ("no idea", -1.0, "no_answer", None)],
)
def test_answers_are_graded(answer, reward, verdict, extracted, make_env, aime_file):
    env = make_env("CleanerAIME-v0", dataset=aime_file, reward=(-1, 1))
    env.reset(options={"problem_id": "q2"})
    *_, earned, terminated, truncated, info = env.step(answer)
    assert (earned, terminated, truncated) == (reward, True, False)
    assert (info["verdict"], info["extracted_answer"], info["stop_condition"]) == (verdict, extracted, "answered")
    assert info["dataset"].startswith(aime_file)
    with pytest.raises(ResetNeeded):
        env.step("again")


def test_the_budget_of_turns_truncates(make_env, python_call):
    env = make_env(max_turns=2)
    env.reset(seed=0)
    assert env.step(python_call("1"))[2:4] == (False, False)
    *_, reward, terminated, truncated, info = env.step(python_call("2"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["stop_condition"], info["verdict"], info["num_turns"]) == ("max_turns", "no_answer", 2)


def test_an_answer_in_the_last_turn_still_counts(make_env, aime_file):
    env = make_env("CleanerAIME-v0", dataset=aime_file, max_turns=1)
    env.reset(options={"index": np.int64(3)})  # as an agent that draws its problems with NumPy has it
    *_, reward, terminated, truncated, _ = env.step(r"\boxed{6}")
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_the_budget_of_seconds_truncates(make_env, python_call):
    env = make_env(time_limit_s=0.05)
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(python_call("import time\ntime.sleep(0.1)"))
    assert (terminated, truncated, info["stop_condition"]) == (False, True, "time_limit")


def test_seconds_of_hidden_attempts_do_not_count(make_env, python_call):
    env = SAARWrapper(make_env(time_limit_s=0.6))
    env.reset(seed=0)
    env.step(python_call("import time\ntime.sleep(0.4)\nnope"))
    env.step(python_call("time.sleep(0.4)\nstill_nope"))
    *_, truncated, info = env.step(python_call("print(1)"))
    assert (truncated, info["stop_condition"]) == (False, None)
    *_, truncated, info = env.step(python_call("import time\ntime.sleep(0.7)"))
    assert (truncated, info["stop_condition"]) == (True, "time_limit")


def test_a_full_context_truncates(make_env):
    env = make_env(reward=(-1, 1))
    env.reset(seed=0)
    *_, reward, terminated, truncated, info = env.unwrapped.truncate()
    assert (reward, terminated, truncated, info["stop_condition"]) == (-1.0, False, True, "context_length")
    with pytest.raises(ResetNeeded):
        env.unwrapped.truncate()


def test_a_dead_sandbox_is_no_reward(make_env, python_call):
    sandbox = make_sandbox("local")
    env = make_env(sandbox=sandbox, reward=(-1, 1))
    env.reset(seed=0)
    sandbox.close()
    *_, reward, terminated, truncated, info = env.step(python_call("1"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["stop_condition"] == info["verdict"] == "infrastructure_error"
    assert info["tool_errors"] == 0


def test_limits_and_time_outs_are_described_without_the_clock(make_env, python_call):
    env = make_env(limits=Limits(wall_s=0.2))
    env.reset(seed=0)
    conversation, *_, info = env.step(python_call("while True: pass"))
    assert conversation[-1]["content"] == "Timeout: the code ran longer than 0.2 s and was stopped"
    assert (info["tool_status"], info["error_type"]) == ("timeout", "timeout")


def test_totals_count_first_attempts_and_recoveries(make_env, python_call):
    env = make_env(max_turns=8)
    env.reset(seed=0)
    for code in ("1", "1/0", "nope", "2", "3"):
        env.step(python_call(code))
    *_, info = env.step("give up")
    totals = {key: info[key] for key in ("tool_calls", "tool_errors", "first_attempt_total", "first_attempt_success",
                                         "recovered_errors", "tool_failure_reasons", "num_turns")}  # fmt: skip
    assert totals == {
        "tool_calls": 5,
        "tool_errors": 2,
        "first_attempt_total": 3,
        "first_attempt_success": 2,
        "recovered_errors": 1,
        "tool_failure_reasons": {"ZeroDivisionError": 1, "NameError": 1},
        "num_turns": 6,
    }


def test_long_output_is_cut_in_the_middle(make_env, python_call):
    env = make_env(max_output_chars=100)
    env.reset(seed=0)
    conversation, *_ = env.step(python_call("print('a' * 500 + 'b' * 500)"))
    shown = conversation[-1]["content"]
    assert shown.startswith("a" * 50 + "\n[... 900 characters cut")
    assert shown.endswith("b" * 50)


def test_completions_stay_completions_in_the_conversation(make_env):
    env = make_env(max_turns=3)
    env.reset(seed=0)
    turn = Completion("```python\n1\n```", (1, 2), (-0.1, -0.2), (0, 9))
    conversation, *_ = env.step(turn)
    assert conversation[-2]["content"].token_ids == (1, 2)


def test_observations_are_the_callers_to_change(make_env, python_call):
    env = make_env()
    first, _ = env.reset(seed=0)
    first[1]["content"] = "changed"
    second, *_ = env.step(python_call("1"))
    assert second[1]["content"] != "changed"


@pytest.mark.parametrize("action", [None, 5, b"bytes", ["text"]])
def test_actions_must_be_strings(action, make_env):
    env = make_env().unwrapped
    env.reset(seed=0)
    with pytest.raises(InvalidActionError, match=type(action).__name__):
        env.step(action)
    assert env.turn == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_turns": 0}, ConfigError, "max_turns"),
        ({"max_turns": "4"}, ConfigError, "max_turns"),
        ({"time_limit_s": -1}, ConfigError, "time_limit_s"),
        ({"time_limit_s": "4"}, ConfigError, "time_limit_s"),
        ({"reward": (1,)}, ConfigError, "reward"),
        ({"reward": 1}, ConfigError, "reward"),
        ({"reward": ("0", "1")}, ConfigError, "reward"),
        ({"reward": (float("nan"), 1)}, ConfigError, "reward"),
        ({"limits": {"wall_s": 2}}, ConfigError, "limits"),
        ({"sandbox": 3}, ConfigError, "sandbox"),
        ({"task": None}, ConfigError, "task"),
        ({"tool_format": "xml"}, ConfigError, "xml"),
        ({"sandbox": "podman"}, ConfigError, "podman"),
        ({"dataset": "aime1066"}, DataError, "aime1066"),
        ({"dataset": "missing.jsonl"}, DataError, "missing.jsonl"),
        ({"split": "dev"}, DataError, "dev"),
        ({"task": "chess"}, ConfigError, "chess"),
        ({"error_detail": "none"}, ConfigError, "error_detail"),
        ({"max_output_chars": 3}, ConfigError, "max_output_chars"),
        ({"max_output_chars": None}, ConfigError, "max_output_chars"),
    ],
)
def test_bad_arguments_are_one_clear_line(options, error, words):
    with pytest.raises(error, match=words) as caught:
        ToolUseEnv(**{"task": "aime", **options})
    assert "\n" not in str(caught.value)


def test_an_unknown_render_mode_is_refused():
    with pytest.raises(ConfigError, match="render_mode"):
        ToolUseEnv("aime", render_mode="rgb_array")


@pytest.mark.parametrize(
    "options", [{"index": -1}, {"index": 99}, {"index": "0"}, {"index": True}, {"problem_id": "nope"}, {"problem_id": 3}]
)
def test_unknown_problems_are_refused(options, make_env, aime_file):
    env = make_env("CleanerAIME-v0", dataset=aime_file)
    with pytest.raises(ConfigError, match=repr(next(iter(options.values())))):
        env.reset(options=options)


def test_a_refused_reset_leaves_the_episode_as_it_was(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    env.step(python_call("x = 1"))
    with pytest.raises(ConfigError):
        env.reset(options={"index": -1})
    conversation, *_ = env.step(python_call("print(x)"))
    assert conversation[-1]["content"] == "1"


def test_rendering(make_env, python_call, capsys):
    env = make_env(render_mode="ansi")
    env.reset(seed=0)
    env.step(python_call("6 * 7"))
    assert env.render().endswith("[tool]\n42\n\n")
    loud = make_env(render_mode="human")
    loud.reset(seed=0)
    loud.step(python_call("6 * 7"))
    printed = capsys.readouterr().out
    assert printed.count("[user]") == 1
    assert printed.endswith("[tool]\n42\n\n")


def descendants():
    """The processes that this one started, directly or not."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(stat.parent.name)] = int(fields[1])
    found, queue = set(), [os.getpid()]
    while queue:
        parent = queue.pop()
        children = {child for child, its_parent in parents.items() if its_parent == parent}
        found |= children
        queue += children
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are counted in /proc")
def test_a_forgotten_environment_leaves_no_process(python_call):
    before = descendants()
    env = ToolUseEnv("arithmetic", sandbox="local", sandbox_options={"preload": ("json",)}, tool_format="python")
    env.reset(seed=0)
    env.step(python_call("1"))
    assert descendants() - before
    del env
    gc.collect()
    deadline = time.monotonic() + 10
    while descendants() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants() - before == set()


def test_importing_the_package_is_light_and_registers():
    code = (
        "import sys, gymnasium as gym; before = set(sys.modules); import cleaner_env; added = set(sys.modules) - before; "
        "assert not {m.split('.')[0] for m in added} & {'torch', 'transformers', 'docker', 'pydantic', 'rich', 'typer'}; "
        "assert 'cleaner_env.env' not in added, added; gym.spec('CleanerAIME-v0'); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_an_environment_can_be_made_without_importing_the_package_first():
    code = "import gymnasium as gym; env = gym.make('cleaner_env:CleanerAIME-v0'); env.close(); print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("begun", [True, False])
def test_a_closed_environment_says_so(begun, python_call):
    env = gym.make("CleanerArithmetic-v0")
    env.reset(seed=0)
    if begun:
        env.step(python_call("print(1)"))
    env.close()
    env.close()
    for use in (env.reset, lambda: env.step("six"), env.unwrapped.truncate):
        with pytest.raises(UsageError, match="this environment is closed; make another one"):
            use()
