"""`RecordEpisodes` around real environments: one, several, in other processes, copied, cut short."""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from cleaner_env import SAARWrapper
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, InvalidActionError
from cleaner_env.wrappers import RecordEpisodes
from cleaner_env.wrappers.records import read_episodes

ENV = "CleanerArithmetic-v0"
CYCLIC = {}
CYCLIC["x"] = CYCLIC


@pytest.fixture
def file(tmp_path):
    return tmp_path / "episodes.jsonl"


@pytest.fixture
def make_env(file):
    envs = []

    def make(saar=True, max_turns=4, **options):
        env = gym.make(ENV, max_turns=max_turns)
        envs.append(RecordEpisodes(SAARWrapper(env) if saar else env, file, **options))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def test_a_purified_episode_is_written_when_it_ends(make_env, file, python_call):
    env = make_env()
    start, _ = env.reset(seed=5)
    failed, fixed = python_call("prnt(6 * 7)", "First.\n"), python_call("print(6 * 7)", "A typo.\n")
    env.step(failed)
    env.step(fixed)
    assert not file.exists()
    conversation, reward, terminated, truncated, info = env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert (record.env_id, record.tool_format, record.seed, record.stream) == (ENV, "python", 5, None)
    assert (record.start, record.conversation) == (start, conversation)
    assert (record.reward, record.terminated, record.truncated) == (reward, terminated, truncated) == (0.0, True, False)
    assert record.info == info
    assert record.purified
    assert [(turn.action, turn.observation, turn.tool_status, turn.error_type) for turn in record.turns] == [
        (failed, "NameError: name 'prnt' is not defined", "error", "NameError"),
        (fixed, "42", "ok", None),
        ("\\boxed{1}", None, None, None),
    ]
    assert all(turn.seconds > 0 for turn in record.turns)
    (repair,) = record.repairs
    assert repair["similarity"] > 0.9
    assert {
        name: repair[name] for name in ("turn", "raw_turns", "attempts", "outcome", "hidden_tokens", "logprob_gap")
    } == {
        "turn": 0,
        "raw_turns": 2,
        "attempts": 1,
        "outcome": "shallow",
        "hidden_tokens": 0,
        "logprob_gap": None,
    }


def test_what_was_said_is_what_purification_says_was_said(make_env, file, python_call):
    env = make_env(max_turns=1)
    for last in (python_call("print(1)"), "too late", python_call("boom")):
        env.reset(seed=0)
        env.step(python_call("boom"))
        env.step(last)
        said = env.env.raw_turns
        env.reset()
        record = list(read_episodes(file))[-1]
        assert [(turn.action, turn.observation, turn.tool_status) for turn in record.turns] == [
            (turn.action, turn.observation, turn.tool_status) for turn in said
        ]


def test_an_episode_without_purification(make_env, file, python_call):
    env = make_env(saar=False)
    env.reset(seed=0)
    env.step(python_call("boom"))
    conversation, *_ = env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert (record.purified, record.repairs, record.conversation) == (False, (), conversation)
    assert [turn.error_type for turn in record.turns] == ["NameError", None]


def test_saar_that_is_off_for_an_episode(make_env, file):
    env = make_env()
    env.reset(options={"saar": False})
    env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert not record.purified


def test_an_episode_cut_short_is_written_and_one_without_a_turn_is_not(make_env, file, python_call):
    env = make_env()
    env.reset()
    env.reset()
    assert not file.exists()
    env.step(python_call("boom"))
    env.reset()
    env.step(python_call("print(1)"))
    env.close()
    env.close()
    cut, closed = read_episodes(file)
    assert not cut.finished
    assert not closed.finished
    assert (cut.repairs[0]["outcome"], closed.turns[0].observation) == (None, "1")


def test_a_full_context_is_written(make_env, file, python_call):
    for saar in (True, False):
        env = make_env(saar=saar)
        env.reset()
        env.step(python_call("boom"))
        env.truncate()
        record = list(read_episodes(file))[-1]
        assert (record.truncated, record.info["stop_condition"], len(record.turns)) == (True, "context_length", 1)
    env.reset()
    env.truncate()
    assert list(read_episodes(file))[-1].turns == ()


def test_a_refused_action_is_no_turn(make_env, file):
    env = make_env()
    env.reset()
    with pytest.raises(InvalidActionError):
        env.step(3)
    env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert len(record.turns) == 1


def test_tokens_are_kept_where_asked_for(make_env, file):
    said = Completion("\\boxed{1}", (3, 4), (-0.5, -0.25), (0, 7))
    for tokens in (True, False):
        env = make_env(tokens=tokens)
        env.reset()
        env.step(said)
    kept, dropped = (record.turns[0].action for record in read_episodes(file))
    assert kept.__getnewargs__() == said.__getnewargs__()
    assert type(dropped) is str


def test_an_episode_that_began_without_it_is_not_recorded(file, python_call):
    inner = SAARWrapper(gym.make(ENV))
    inner.reset(seed=0)
    with RecordEpisodes(inner, file) as env:
        for act in (lambda: env.step("\\boxed{1}"), env.truncate):
            with pytest.raises(ResetNeeded, match="did not begin here"):
                act()
        env.reset(seed=1)
        env.step("\\boxed{1}")
        with pytest.raises(ResetNeeded):
            env.step("\\boxed{1}")
    assert [record.seed for record in read_episodes(file)] == [1]


def test_a_reset_that_is_refused_leaves_the_episode_running(make_env, file, python_call):
    env = make_env()
    env.reset(seed=0)
    env.step(python_call("print(1)"))
    for options in ({"index": 10**9}, {"saar": "yes"}, 5):
        with pytest.raises(ConfigError):
            env.reset(options=options)
    env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert (len(record.turns), record.finished) == (2, True)


@pytest.mark.parametrize("strategy", ["none", "mask", "saar"])
def test_what_was_not_purified_is_not_recorded_as_purified(file, python_call, strategy):
    with RecordEpisodes(SAARWrapper(gym.make(ENV), strategy=strategy), file) as env:
        env.reset(seed=0)
        env.step(python_call("boom"))
        env.step("\\boxed{1}")
    (record,) = read_episodes(file)
    assert record.purified == (strategy == "saar")


def test_labels_stand_in_every_line(make_env, file):
    env = make_env(labels={"phase": "eval", "about": {"step": 3, "loss": float("nan")}})
    for _ in range(2):
        env.reset()
        env.step("\\boxed{1}")
    assert [record.labels for record in read_episodes(file)] == [{"phase": "eval", "about": {"step": 3, "loss": None}}] * 2


@pytest.mark.parametrize("labels", [{"reward": 1}, {"schema": 1}, {3: "x"}, {"x": {1, 2}}, CYCLIC, ["a"], "ab", 5])
def test_labels_that_cannot_be(make_env, labels):
    with pytest.raises(ConfigError, match="labels"):
        make_env(labels=labels)


def test_a_file_of_something_else_is_refused_before_anything_is_played(make_env, file):
    file.write_text("my notes\n")
    with pytest.raises(ConfigError, match="holds something other than episodes of schema 2"):
        make_env()
    assert file.read_text() == "my notes\n"


def test_what_has_no_conversation_is_refused(file):
    env = gym.make("CartPole-v1")
    with pytest.raises(ConfigError, match="RecordEpisodes needs a ToolUseEnv"):
        RecordEpisodes(env, file)
    env.close()


def test_under_and_over_gymnasiums_wrappers(file, python_call):
    env = RecordEpisodes(RecordEpisodeStatistics(SAARWrapper(gym.make(ENV))), file)
    with TimeLimit(env, 2) as env:
        env.reset(seed=0)
        env.step("\\boxed{1}")
        env.reset(seed=0)
        env.step(python_call("boom"))
        assert env.step(python_call("print(1)"))[3]
    whole, cut = read_episodes(file)
    assert whole.info["episode"]["l"] == 1
    assert (cut.finished, len(cut.turns), cut.repairs[0]["attempts"]) == (False, 2, 1)


def test_a_copy_writes_episodes_of_its_own(make_env, file):
    env = make_env()
    env.reset(seed=0)
    env.step("```python\nprint(1)\n```")
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        copied.reset(seed=1)
        copied.step("\\boxed{1}")
        copied.close()
    env.step("\\boxed{1}")
    assert [(record.seed, len(record.turns)) for record in read_episodes(file)] == [(1, 1), (1, 1), (0, 2)]


def test_the_spec_makes_it_again(make_env, file):
    env = make_env(labels={"phase": "eval"}, tokens=True)
    with gym.make(env.spec) as again:
        assert isinstance(again, RecordEpisodes)
        again.reset(seed=0)
        again.step("\\boxed{1}")
    assert [record.labels for record in read_episodes(file)] == [{"phase": "eval"}]


@pytest.mark.parametrize("kind", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_vector_environments_write_one_file(kind, file):
    def make():
        return RecordEpisodes(SAARWrapper(gym.make(ENV)), file)

    envs = kind([make] * 3)
    envs.reset(seed=7)
    for _ in range(5):
        envs.step(("```python\nprnt(1)\n```",) * 3)
        envs.step(("```python\nprint(1)\n```",) * 3)
        envs.step(("\\boxed{1}",) * 3)
        envs.step(("",) * 3)  # the step that resets
    envs.close()
    records = list(read_episodes(file))
    assert len(records) == 15
    assert sorted(record.seed for record in records if record.seed is not None) == [7, 8, 9]
    assert all(record.finished and record.repairs[0]["outcome"] == "shallow" for record in records)


PLAY = """
import sys, gymnasium as gym, cleaner_env
from cleaner_env.wrappers import RecordEpisodes, SAARWrapper
env = RecordEpisodes(SAARWrapper(gym.make("CleanerArithmetic-v0")), sys.argv[1], {"player": sys.argv[2]})
while True:
    env.reset()
    env.step("```python\\nprnt(1)\\n```")
    env.step("```python\\nprint(1)\\n```")
    env.step("\\\\boxed{1}")
    print("played", flush=True)
"""


def test_players_that_are_killed_leave_whole_episodes(file):
    def start(name):
        # A session of its own, so that the sandbox goes down with it.
        return subprocess.Popen([sys.executable, "-c", PLAY, file, name], stdout=subprocess.PIPE, start_new_session=True)

    players = {name: start(name) for name in "ab"}
    played = {name: [player.stdout.readline() for _ in range(5)] for name, player in players.items()}
    for player in players.values():
        os.killpg(player.pid, signal.SIGKILL)
        player.stdout.close()
        player.wait()
    assert played == {name: [b"played\n"] * 5 for name in "ab"}
    records = list(read_episodes(file))
    assert all(record.finished and len(record.turns) == 3 for record in records)
    assert all(sum(record.labels["player"] == name for record in records) >= 5 for name in "ab")


def test_every_line_is_strict_json_with_the_schema_first(make_env, file):
    env = make_env()
    env.reset()
    env.step("\ud800\u2028</script>\\boxed{1}")

    def refuse(constant):
        raise AssertionError(constant)

    (line,) = file.read_bytes().splitlines()
    value = json.loads(line, parse_constant=refuse)
    assert next(iter(value)) == "schema"
    assert value["turns"][0]["action"] == "\ud800\u2028</script>\\boxed{1}"
