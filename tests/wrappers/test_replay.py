from dataclasses import replace

import gymnasium as gym
import pytest

from cleaner_env import SAARWrapper
from cleaner_env.errors import DataError
from cleaner_env.sandbox import make_sandbox
from cleaner_env.wrappers import RecordEpisodes
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.purifier import PurificationRule
from cleaner_env.wrappers.records import EpisodeRecord, read_episodes
from cleaner_env.wrappers.replay import Change, ReplayReport, replay_episode


def call(code, reasoning="Step.\n"):
    return f"{reasoning}```python\n{code}\n```"


EPISODES = (
    (call("prnt(6 * 7)"), call("print(6 * 7)", "A typo.\n"), "\\boxed{42}"),
    (
        call("print(1)"),
        call("boom"),
        call("for i in range(3):\n    print(i)", "Anew.\n"),
        call("prnt(2)"),
        call("print(2)"),
    ),
    (call("boom"), call("bomm"), call("bbom"), call("bmoo"), call("print(1)")),
    (call("boom"), "I give up."),
    (call("boom"),),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The same said with and without purification; the last episodes run out of turns, or are cut short."""
    folder = tmp_path_factory.mktemp("recorded")
    with make_sandbox("local") as sandbox:
        for name, probability in (("purified", 1.0), ("raw", 0.0)):
            env = SAARWrapper(
                gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_turns=9), rollback_probability=probability
            )
            with RecordEpisodes(env, folder / f"{name}.jsonl") as env:
                for said in EPISODES:
                    env.reset(seed=0)
                    for action in said:
                        env.step(action)
    return {name: list(read_episodes(folder / f"{name}.jsonl")) for name in ("purified", "raw")}


def outcomes(records):
    return [[repair["outcome"] for repair in record.repairs] for record in records]


def test_the_rule_of_the_recording_gives_the_recording(recorded):
    for record in recorded["purified"]:
        assert replay_episode(record, PurificationRule()) == record
    assert outcomes(recorded["purified"]) == [["shallow"], ["deep", "shallow"], ["failed"], ["abandoned"], [None]]


def test_raw_episodes_are_purified_as_though_they_had_been_recorded_so(recorded):
    for raw, purified in zip(recorded["raw"], recorded["purified"], strict=True):
        replayed = replay_episode(raw, PurificationRule())
        assert replayed.conversation == purified.conversation
        assert replayed.repairs == purified.repairs
        assert replayed.purified


def test_another_rule_and_back(recorded):
    strict = PurificationRule(similarity_threshold=0.99, max_retries=1)
    replayed = [replay_episode(record, strict) for record in recorded["purified"]]
    assert outcomes(replayed) == [["deep"], ["deep", "deep"], ["failed"], ["abandoned"], [None]]
    assert [replay_episode(record, PurificationRule()) for record in replayed] == recorded["purified"]
    kept = [replay_episode(record, PurificationRule(strategy="none")) for record in recorded["purified"]]
    assert [record.conversation for record in kept] == [record.conversation for record in recorded["raw"]]
    assert not any(record.purified for record in kept)


def test_a_budget_that_ended_the_episode_ends_the_replay(python_call):
    turns = tuple(Turn(python_call(code), "NameError", "error") for code in ("a", "b", "c"))
    record = EpisodeRecord("p", "d", (), turns, (), tool_format="python")
    ended = replace(record, info={"stop_condition": "max_turns", "num_turns": 2})
    rule = PurificationRule(max_retries=1)
    assert len(replay_episode(ended, rule).conversation) == 4
    assert outcomes([replay_episode(ended, PurificationRule(strategy="none"))]) == [[]]
    assert len(replay_episode(ended, PurificationRule(strategy="none")).conversation) == 4
    assert len(replay_episode(record, PurificationRule(strategy="none")).conversation) == 6


def test_a_report_says_what_changed(recorded):
    report = ReplayReport(keep=2)
    for record in recorded["purified"]:
        report.add(record, replay_episode(record, PurificationRule(strategy="deep", max_retries=2)))
    assert (report.episodes, report.episodes_changed) == (5, 2)
    assert report.before == {"shallow": 2, "deep": 1, "failed": 1, "abandoned": 1, "unfinished": 1}
    assert report.after == {"deep": 3, "failed": 1, "abandoned": 1, "unfinished": 1}
    assert report.changes == {("shallow", "deep"): 2}
    problem = recorded["purified"][0].problem_id
    first, second = report.examples
    assert first == Change(problem, 0, "shallow", "deep", first.similarity)
    assert (second.turn, first.similarity > 0.9) == (3, True)
    assert report.as_dict()["changes"] == [{"before": "shallow", "after": "deep", "count": 2}]


def test_records_that_cannot_be_replayed_say_why(recorded):
    record = recorded["raw"][0]
    with pytest.raises(DataError, match="calls in the format 'xml', which is none of hermes, python"):
        replay_episode(replace(record, tool_format="xml"), PurificationRule())
    forged = (Turn("Hello.", "boom", "error"), Turn(call("print(1)"), "1", "ok"))
    with pytest.raises(DataError, match="failed without calling the tool"):
        replay_episode(replace(record, turns=forged), PurificationRule())


def test_seconds_that_ended_the_episode_end_the_replay(tmp_path, python_call):
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", time_limit_s=0.2))
    with RecordEpisodes(env, tmp_path / "episodes.jsonl") as env:
        env.reset(seed=0)
        env.step(python_call("import time\ntime.sleep(0.3)\nboom"))
        conversation, *_, info = env.step("\\boxed{1}")
    (record,) = read_episodes(tmp_path / "episodes.jsonl")
    assert (info["stop_condition"], len(record.turns), len(conversation)) == ("time_limit", 2, 4)
    assert replay_episode(record, PurificationRule()) == record
    kept = replay_episode(record, PurificationRule(strategy="none"))
    assert (kept.conversation, kept.repairs) == (conversation, ())
