import copy
import json
import os
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaner_env import SAARWrapper
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, InvalidActionError, UsageError
from cleaner_env.sandbox import make_sandbox
from cleaner_env.tool_calls import get_tool_format
from cleaner_env.wrappers import RecordEpisodes


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as sandbox:
        yield sandbox


@pytest.fixture
def make_env(sandbox):
    envs = []

    def make(max_turns=4, **options):
        envs.append(SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_turns=max_turns), **options))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def contents(conversation):
    return [message["content"] for message in conversation[2:]]


def test_a_similar_correction_is_grafted_onto_the_old_reasoning(make_env, python_call):
    env = make_env()
    start, info = env.reset(seed=0)
    assert info["saar"]["enabled"]
    failed, fixed = python_call("prnt(6 * 7)", "First.\n"), python_call("print(6 * 7)", "A typo.\n")
    lookahead, reward, terminated, truncated, info = env.step(failed)
    assert contents(lookahead) == [failed, "NameError: name 'prnt' is not defined"]
    assert (reward, terminated, truncated, info["saar"]["phase"]) == (0.0, False, False, "lookahead")
    purified, *_, info = env.step(fixed)
    assert contents(purified) == [python_call("print(6 * 7)", "First.\n"), "42"]
    assert purified[:2] == start
    assert (info["saar"]["phase"], info["saar"]["shallow"], info["saar"]["attempts"], info["turn"]) == ("shallow", 1, 1, 1)
    assert info["saar"]["similarity"] > 0.9
    assert contents(env.raw_conversation) == [failed, "NameError: name 'prnt' is not defined", fixed, "42"]
    (repair,) = env.repairs
    assert (repair.outcome, repair.correction.action, repair.failures[0].action) == ("shallow", fixed, failed)


def test_a_different_correction_replaces_the_whole_turn(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    env.step(python_call("boom", "First.\n"))
    fixed = python_call("for i in range(3):\n    print(i * i)", "Another way.\n")
    purified, *_, info = env.step(fixed)
    assert contents(purified) == [fixed, "0\n1\n4"]
    assert (info["saar"]["phase"], info["saar"]["deep"]) == ("deep", 1)


def test_a_failed_correction_replaces_the_failed_turn_at_once(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    env.step(python_call("prnt(1)", "First.\n"))
    lookahead, *_, info = env.step(python_call("prin(1)", "Second.\n"))
    assert contents(lookahead) == [python_call("prin(1)", "First.\n"), "NameError: name 'prin' is not defined"]
    assert (info["saar"]["phase"], info["saar"]["attempts"], info["turn"]) == ("lookahead", 1, 0)
    purified, *_, info = env.step(python_call("print(1)", "Third.\n"))
    assert contents(purified) == [python_call("print(1)", "First.\n"), "1"]
    assert info["saar"]["attempts"] == 2


def test_after_the_last_retry_the_error_stays_and_purification_ends(make_env, python_call):
    env = make_env(max_retries=2)
    env.reset(seed=0)
    for code in ("prnt(1)", "prin(1)"):
        *_, info = env.step(python_call(code))
        assert info["saar"]["phase"] == "lookahead"
    conversation, *_, info = env.step(python_call("pint(1)"))
    assert contents(conversation) == [python_call("pint(1)"), "NameError: name 'pint' is not defined"]
    assert (info["saar"]["phase"], info["saar"]["failed"], info["saar"]["enabled"], info["turn"]) == ("failed", 1, False, 1)
    conversation, *_, info = env.step(python_call("1/0"))
    assert info["saar"]["phase"] == "idle"
    assert contents(conversation)[-1] == "ZeroDivisionError: division by zero"
    assert info["turn"] == 2


def test_an_answer_instead_of_a_correction_abandons_the_repair(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    failed = python_call("prnt(1)")
    env.step(failed)
    conversation, _, terminated, truncated, info = env.step("I give up.")
    assert contents(conversation) == [failed, "NameError: name 'prnt' is not defined", "I give up."]
    assert (terminated, truncated, info["saar"]["phase"], info["saar"]["abandoned"]) == (True, False, "abandoned", 1)
    assert info["num_turns"] == 2
    assert contents(env.raw_conversation) == contents(conversation)


def test_no_hidden_turn_beyond_the_budget_for_an_abandoned_repair(make_env, python_call):
    env = make_env(max_turns=1)
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(python_call("prnt(1)"))
    assert (terminated, truncated) == (False, False)
    conversation, reward, terminated, truncated, info = env.step(r"\boxed{" + env.unwrapped.problem.answer + "}")
    assert (reward, terminated, truncated, info["stop_condition"]) == (0.0, False, True, "max_turns")
    assert len(contents(conversation)) == 2


def test_a_purified_last_turn_still_spends_the_budget(make_env, python_call):
    env = make_env(max_turns=1)
    env.reset(seed=0)
    env.step(python_call("prnt(1)"))
    *_, terminated, truncated, info = env.step(python_call("print(1)"))
    assert (terminated, truncated, info["stop_condition"], info["num_turns"]) == (False, True, "max_turns", 1)
    assert (info["first_attempt_total"], info["first_attempt_success"], info["recovered_errors"]) == (1, 0, 1)


def test_a_correction_of_the_last_turn_finds_the_interpreter_as_it_was(make_env, python_call):
    env = make_env(max_turns=2)
    env.reset(seed=0)
    for code in ("x = 7", "prnt(x)", "print(x)"):
        conversation, *_, truncated, info = env.step(python_call(code))
    assert (contents(conversation)[-1], truncated, info["stop_condition"]) == ("7", True, "max_turns")


def test_a_malformed_call_is_repaired_too(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    *_, info = env.step("Go.\n```python\nprint(1)\n")
    assert (info["tool_status"], info["saar"]["phase"]) == ("malformed", "lookahead")
    purified, *_ = env.step(python_call("print(1)", "Close it.\n"))
    assert contents(purified) == [python_call("print(1)", "Go.\n"), "1"]


def test_only_chosen_errors_start_a_repair(make_env, python_call):
    env = make_env(on_errors={"malformed"})
    env.reset(seed=0)
    *_, info = env.step(python_call("1/0"))
    assert (info["saar"]["phase"], info["turn"]) == ("idle", 1)


def test_no_retries_means_no_purification(make_env, python_call):
    env = make_env(max_retries=0)
    env.reset(seed=0)
    *_, info = env.step(python_call("1/0"))
    assert (info["saar"]["phase"], info["turn"]) == ("idle", 1)


def test_an_outage_never_starts_a_repair(python_call):
    sandbox = make_sandbox("local")
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox))
    env.reset(seed=0)
    sandbox.close()
    *_, terminated, truncated, info = env.step(python_call("print(1)"))
    assert (terminated, truncated, info["stop_condition"]) == (False, True, "infrastructure_error")
    assert info["saar"]["phase"] == "idle"
    assert env.repairs == ()


def test_the_share_of_purified_episodes(make_env):
    env = make_env(rollback_probability=0.7)
    env.reset(seed=1)
    drawn = [env.reset()[1]["saar"]["enabled"] for _ in range(300)]
    assert 0.6 < np.mean(drawn) < 0.8
    env.reset(seed=1)
    assert [env.reset()[1]["saar"]["enabled"] for _ in range(300)] == drawn


@pytest.mark.parametrize("probability", [0, 1])
def test_a_certain_decision_leaves_the_problems_as_they_are(make_env, probability):
    wrapped, bare = make_env(rollback_probability=probability), make_env().unwrapped
    seeded = [wrapped.reset(seed=4)[0], wrapped.reset()[0]]
    assert seeded == [bare.reset(seed=4)[0], bare.reset()[0]]
    assert wrapped.reset()[1]["saar"]["enabled"] == bool(probability)


def test_an_episode_can_be_decided_by_option(make_env, python_call):
    env = make_env(rollback_probability=1)
    assert not env.reset(seed=0, options={"saar": False})[1]["saar"]["enabled"]
    conversation, *_ = env.step(python_call("1/0"))
    assert len(contents(conversation)) == 2
    assert env.reset(seed=0, options={"saar": True})[1]["saar"]["enabled"]
    with pytest.raises(ConfigError, match="'yes'"):
        env.reset(options={"saar": "yes"})


def test_hidden_tokens_are_those_that_vanished(make_env):
    env = make_env()
    env.reset(seed=0)

    def sampled(text):
        return Completion(text, range(len(text)), [-1.0] * len(text), range(len(text)))

    failed, fixed = "Go.\n```python\nprnt(1)\n```", "Hm.\n```python\nprint(1)\n```"
    env.step(sampled(failed))
    conversation, *_, info = env.step(sampled(fixed))
    assert info["saar"]["hidden_tokens"] == len(failed) + len(fixed) - len(contents(conversation)[0])
    assert any(conversation[-2]["content"].grafted)


def test_the_answer_that_an_abandoned_last_turn_has_no_room_for_is_hidden(make_env, python_call):
    env = make_env(max_turns=1)
    env.reset(seed=0)
    env.step(python_call("boom"))
    *_, truncated, info = env.step(Completion("Six.", range(2), [-1.0] * 2, (0, 3)))
    assert (truncated, info["saar"]["phase"], info["saar"]["hidden_tokens"]) == (True, "abandoned", 2)


def test_a_full_context_ends_a_lookahead(make_env, python_call):
    env = make_env(max_turns=2)
    env.reset(seed=0)
    env.step(python_call("print(1)"))
    lookahead, *_ = env.step(python_call("boom"))
    conversation, reward, terminated, truncated, info = env.truncate()
    assert (conversation, reward, terminated, truncated) == (lookahead, 0.0, False, True)
    assert (info["stop_condition"], info["num_turns"], info["tool_errors"]) == ("context_length", 2, 1)
    assert (info["saar"]["phase"], info["saar"]["abandoned"]) == ("idle", 0)
    assert [repair.outcome for repair in env.repairs] == [None]
    for action in ("Six.", python_call("print(1)")):
        with pytest.raises(ResetNeeded):
            env.step(action)
    with pytest.raises(ResetNeeded):
        env.truncate()


def test_an_outage_during_a_lookahead_ends_the_episode(python_call):
    sandbox = make_sandbox("local")
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox))
    env.reset(seed=0)
    env.step(python_call("boom"))
    sandbox.close()
    *_, truncated, info = env.step(python_call("print(1)"))
    assert (truncated, info["stop_condition"]) == (True, "infrastructure_error")
    assert (info["turn"], info["num_turns"], info["saar"]["phase"]) == (2, 2, "idle")
    with pytest.raises(ResetNeeded):
        env.step("Six.")


@settings(max_examples=25)
@given(
    steps=st.lists(st.tuples(st.integers(-9, 9), st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=4),
)
def test_a_purified_history_is_the_one_in_which_the_error_never_happened(steps, sandbox):
    """Failing cells change what they can before they fail; the history and what runs later must not notice."""
    damage = [
        "total = 999\nraise ValueError",
        "log.append('bad')\n1/0",
        "import os\nos.environ['X'] = '1'\nos.chdir('/')\nnope",
        "open('note.txt', 'w').write('bad')\nassert False",
        "log.clear()\ndel total\nimport sys\nsys.exit(3)",
    ]
    setup = "total = 0\nlog = []\nopen('note.txt', 'w').write('good')\nprint('ready')"

    def turn(code):
        return f"Step.\n```python\n{code}\n```"

    def good(number):
        return turn(
            f"total += {number}\nlog.append({number})\nimport os\n"
            "print(total, log, open('note.txt').read(), os.environ.get('X'), os.path.basename(os.getcwd()) != '')"
        )

    def play(with_errors):
        env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_turns=10))
        env.reset(seed=0)
        conversation, *_ = env.step(turn(setup))
        for number, errors in steps:
            for error in errors if with_errors else ():
                env.step(turn(damage[error]))
            conversation, *_ = env.step(good(number))
        env.close()
        return conversation

    assert play(with_errors=True) == play(with_errors=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"similarity_threshold": 1.5}, r"similarity_threshold must lie in \[0, 1\], got 1.5"),
        ({"similarity_threshold": float("nan")}, "similarity_threshold"),
        ({"similarity_threshold": "0.5"}, r"similarity_threshold must be a number in \[0, 1\], got '0.5'"),
        ({"similarity_threshold": True}, "similarity_threshold must be a number"),
        ({"reference_compatible": "yes"}, "reference_compatible must be True or False, got 'yes'"),
        ({"max_retries": -1}, "max_retries must be an int of at least 0, got -1"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"rollback_probability": -0.1}, "rollback_probability"),
        ({"on_errors": {"infrastructure_error"}}, "infrastructure_error"),
        ({"on_errors": "error"}, "on_errors"),
        ({"on_errors": 3}, "on_errors"),
        ({"on_errors": [["error"]]}, "on_errors"),
        ({"similarity": None}, "similarity must be one of characters"),
        ({"similarity": "cosine"}, "similarity must be one of characters, .* got 'cosine'"),
        ({"similarity": "ast", "reference_compatible": True}, "reference_compatible chooses the similarity itself"),
    ],
)
def test_arguments_out_of_range_are_refused(options, words, sandbox):
    env = gym.make("CleanerArithmetic-v0", sandbox=sandbox)
    with pytest.raises(ConfigError, match=words):
        SAARWrapper(env, **options)


def test_numbers_of_numpy_and_a_default_by_its_name_are_taken():
    env = gym.make("CleanerArithmetic-v0")
    options = {"similarity_threshold": np.float32(0.5), "max_retries": np.int64(2), "rollback_probability": np.int64(1)}
    env = SAARWrapper(env, **options, similarity="characters", reference_compatible=True)
    assert (env.rule.similarity_threshold, env.rule.max_retries) == (0.5, 2)
    kwargs = env.spec.additional_wrappers[-1].kwargs
    assert json.loads(json.dumps(kwargs)) == kwargs
    env.close()


class Passing(gym.Wrapper):
    """A wrapper of somebody's own that leaves everything as it is."""


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (gym.wrappers.RecordEpisodeStatistics, "RecordEpisodeStatistics"),
        (lambda env: gym.wrappers.TransformReward(env, lambda reward: reward + 5), "TransformReward"),
        (lambda env: RecordEpisodes(env, os.devnull + "-episodes"), "RecordEpisodes"),
        (lambda env: Passing(gym.wrappers.Autoreset(env)), "Autoreset"),
    ],
)
def test_wrappers_that_belong_around_it_are_refused_under_it(sandbox, wrap, name):
    env = wrap(gym.make("CleanerArithmetic-v0", sandbox=sandbox))
    with pytest.raises(ConfigError, match=rf"put it around: {name}\(SAARWrapper\(env\)\)"):
        SAARWrapper(env)
    SAARWrapper(Passing(env.unwrapped))


@pytest.mark.parametrize(
    ("codes", "phase", "texts"),
    [
        (["prnt(1)", "print(1)"], "shallow", ["print(1)", "1"]),
        (["prnt(1)", "prin(1)"], "idle", ["prin(1)", "NameError: name 'prin' is not defined"]),
        (["print(1)", "prnt(2)"], "idle", ["print(1)", "1", "prnt(2)", "NameError: name 'prnt' is not defined"]),
        (["print(1)", "print(2)"], "idle", ["print(1)", "1", "print(2)", "2"]),
    ],
)
def test_a_limit_of_steps_underneath_ends_the_episode(sandbox, python_call, codes, phase, texts):
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_episode_steps=2))
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(python_call(codes[0]))
    assert (terminated, truncated) == (False, False)
    conversation, reward, terminated, truncated, info = env.step(python_call(codes[1]))
    said = contents(conversation)
    assert said == [python_call(text) if number % 2 == 0 else text for number, text in enumerate(texts)]
    assert (reward, terminated, truncated, info["saar"]["phase"], info["turn"]) == (0, False, True, phase, len(said) // 2)
    assert conversation == env.unwrapped.conversation
    env.close()


@pytest.mark.parametrize("options", [{"strategy": "none"}, {"strategy": "mask"}, {"max_retries": 0}])
def test_an_episode_whose_failures_stay_is_not_called_purified(make_env, python_call, options):
    env = make_env(**options)
    assert not env.reset(seed=0)[1]["saar"]["enabled"]
    *_, info = env.step(python_call("1/0"))
    assert not info["saar"]["enabled"]
    assert info["saar"]["masked"] == (options.get("strategy") == "mask")


def test_a_similarity_that_raises_leaves_the_episode_as_it_was(make_env, python_call):
    def compare(first, second):
        if "2" in second:
            raise ZeroDivisionError
        return float("nan") if "3" in second else 1.0

    env = make_env(similarity=compare)
    env.reset(seed=0)
    lookahead, *_ = env.step(python_call("x = 0\nprnt(1)", "First.\n"))
    for code, error in (("x = 2", ZeroDivisionError), ("x = 3", ConfigError)):
        with pytest.raises(error):
            env.step(python_call(code))
    assert env.unwrapped.conversation == lookahead
    conversation, *_, info = env.step(python_call("print('x' in globals())"))
    assert contents(conversation) == [python_call("print('x' in globals())", "First.\n"), "False"]
    assert (info["saar"]["phase"], info["turn"], len(env.raw_turns)) == ("shallow", 1, 2)


@pytest.mark.parametrize("tool_format", ["python", "hermes"])
def test_a_thinking_tag_in_a_correction_is_part_of_its_code(sandbox, tool_format):
    write = get_tool_format(tool_format).render
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, tool_format=tool_format), similarity_threshold=0)
    env.reset(seed=0)
    for code in ("prnt('a')", "prin('</think>')"):
        env.step(write("<think>x</think>\n" if "think" in code else "Multiply.\n", code))
    conversation, *_, info = env.step(write("", "print('</think>')"))
    assert contents(conversation) == [write("Multiply.\n", "print('</think>')"), "</think>"]
    assert (info["saar"]["phase"], info["saar"]["attempts"]) == ("shallow", 2)
    env.close()


@pytest.mark.parametrize("options", ["x", 5, [("saar", True)]])
def test_options_that_are_no_mapping_are_refused(make_env, options):
    with pytest.raises(ConfigError, match="options must be a dict such as"):
        make_env().reset(options=options)


def test_it_wraps_conversations_and_only_once(make_env):
    with pytest.raises(ConfigError, match="ToolUseEnv"):
        SAARWrapper(gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="already"):
        SAARWrapper(make_env())


def test_actions_must_be_strings(make_env):
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(InvalidActionError):
        env.step(7)


def test_the_spec_keeps_a_similarity_chosen_by_name():
    for options in ({"similarity": "tokens"}, {"reference_compatible": True}):
        env = SAARWrapper(gym.make("CleanerArithmetic-v0"), **options)
        twin = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert twin.spec == env.spec
        assert twin.spec.additional_wrappers[-1].kwargs.items() >= options.items()
        twin.close()
        env.close()


def test_reference_compatible_chooses_as_the_reference_does(sandbox):
    decisions = []
    for reference_compatible in (False, True):
        inner = gym.make("CleanerArithmetic-v0", sandbox=sandbox)
        with SAARWrapper(inner, reference_compatible=reference_compatible) as env:
            env.reset(seed=1)
            env.step("```python\n1 / 0\n```")
            info = env.step("```python\nprint('ok')\n```")[4]
            decisions.append(info["saar"]["phase"])
    assert decisions == ["deep", "shallow"]


def test_the_spec_makes_the_same_environment_again():
    env = SAARWrapper(gym.make("CleanerArithmetic-v0"), similarity_threshold=0.25, max_retries=1)
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        twin = gym.make(spec)
        assert isinstance(twin, SAARWrapper)
        assert twin.spec == env.spec
        twin.close()
    env.close()
    chosen = SAARWrapper(gym.make("CleanerArithmetic-v0"), on_errors={"timeout"}, similarity=max)
    assert chosen.spec.additional_wrappers[-1].kwargs == {
        "similarity_threshold": 0.5,
        "max_retries": 3,
        "rollback_probability": 1.0,
        "similarity": max,
        "on_errors": ["timeout"],
    }
    chosen.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_is_a_new_environment_of_the_same_kind(copied, python_call):
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", max_turns=3), max_retries=1, similarity="lines", strategy="deep")
    start, _ = env.reset(seed=3)
    env.step(python_call("prnt(1)"))
    twin = copied(env)
    assert twin.spec == env.spec
    assert twin.repairs == ()
    with pytest.raises(ResetNeeded):
        twin.step("six")
    assert twin.reset(seed=3)[0] == start
    twin.step(python_call("prnt(1)", "Old.\n"))
    conversation, *_ = twin.step(python_call("print(1)", "New.\n"))
    assert contents(conversation) == [python_call("print(1)", "New.\n"), "1"]
    assert env.step(python_call("print(2)"))[4]["saar"]["deep"] == 1
    twin.close()
    env.close()


def test_an_environment_with_an_open_sandbox_cannot_be_copied(make_env):
    with pytest.raises(UsageError, match='name a backend instead, such as sandbox="local"'):
        pickle.dumps(make_env())


def test_it_works_under_time_limit_statistics_and_in_vector_environments(python_call):
    envs = gym.make_vec(
        "CleanerArithmetic-v0",
        num_envs=2,
        vectorization_mode="async",
        wrappers=[SAARWrapper, lambda env: gym.wrappers.TimeLimit(env, 10), gym.wrappers.RecordEpisodeStatistics],
    )
    try:
        envs.reset(seed=0)
        conversations, *_ = envs.step((python_call("prnt(1)"), python_call("print(1)")))
        assert "NameError" in conversations[0][-1]["content"]
        conversations, *_ = envs.step((python_call("print(1)"), python_call("print(2)")))
        assert contents(conversations[0]) == [python_call("print(1)"), "1"]
        *_, terminated, _, infos = envs.step(("done", "done"))
        assert terminated.all()
        assert list(infos["episode"]["l"]) == [3, 3]
        assert list(infos["saar"]["shallow"]) == [1, 0]
    finally:
        envs.close()


def test_a_repair_after_the_state_was_lost_is_no_repair_where_the_history_would_be_untrue(make_env, python_call):
    env = make_env()
    env.reset(seed=0)
    env.step(python_call("import os\nx = os.urandom(8)\nprint(x)"))
    *_, info = env.step(python_call("os.kill(os.getppid(), 9)\n1/0"))
    assert info["saar"]["phase"] == "lookahead"
    *_, terminated, truncated, info = env.step(python_call("print(x)"))
    assert (terminated, truncated, info["stop_condition"]) == (False, True, "infrastructure_error")
    assert (info["turn"], info["saar"]["shallow"], env.repairs[0].outcome) == (3, 0, None)
