from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleaner_env import SAARWrapper
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError
from cleaner_env.sandbox import make_sandbox
from cleaner_env.tool_calls import get_tool_format
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.purifier import STRATEGIES, PurificationRule, purify_episode

START = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 * 7?"})


def call(code, reasoning="Step.\n"):
    return f"{reasoning}```python\n{code}\n```"


def ran(code, output="42", reasoning="Step.\n"):
    return Turn(call(code, reasoning), output, "ok")


def failed(code, reasoning="Step.\n", status="error"):
    return Turn(call(code, reasoning), f"{code} failed", status, "Failure")


def purified(*turns, max_turns=float("inf"), **rule):
    return purify_episode(START, turns, PurificationRule(**rule), tool_format="python", max_turns=max_turns)


def outcomes(episode):
    return [repair.outcome for repair in episode.repairs]


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as sandbox:
        yield sandbox


# What the assistant may say, in the fenced format, and whether that ends the episode.
SAID = (
    call("print(6 * 7)"),
    call("x = 1"),
    call("print(x)", "Now x.\n"),
    call("prnt(6 * 7)"),
    call("x = 5\n1 / 0", "Divide.\n"),
    call("import sys\nsys.exit(2)", ""),
    "Cut off.\n```python\nprint(",
    f"{call('print(1)')}\nand\n{call('print(2)')}",
    f"<think>{call('boom')}</think>\n{call('print(3)')}",
    "\\boxed{42}, or rather:\n" + call("print(x + 1)"),
)
ANSWERS = ("The answer is \\boxed{42}.", f"<think>\n{call('print(1)')}\n</think> Six.", "")
rules = st.builds(
    PurificationRule,
    strategy=st.sampled_from(STRATEGIES),
    similarity_threshold=st.sampled_from((0.0, 0.3, 0.5, 0.9, 1.0)),
    max_retries=st.integers(0, 3),
    similarity=st.sampled_from(("characters", "tokens", "lines", "ast", "reference")),
    on_errors=st.sampled_from((("error", "malformed", "exit"), ("error",), ("malformed",))),
)


def play(sandbox, said, rule, max_turns, enabled=True):
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_turns=max_turns), **vars(rule))
    env.reset(seed=0, options={"saar": enabled})
    for action in said:
        conversation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    result = conversation, env.repairs, env.masked_turns, info["saar"], env.raw_turns, env.raw_conversation
    env.close()
    return result


def without_seconds(repairs):
    def bare(turn):
        return None if turn is None else replace(turn, seconds=None)

    return [
        replace(
            repair,
            failures=[bare(turn) for turn in repair.failures],
            **{name: bare(getattr(repair, name)) for name in ("current", "correction", "purified")},
        )
        for repair in repairs
    ]


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(
    said=st.lists(st.sampled_from(SAID), min_size=1, max_size=9),
    answer=st.sampled_from(ANSWERS),
    rule=rules,
    max_turns=st.integers(1, 6),
)
def test_offline_purification_is_what_the_wrapper_does(sandbox, said, answer, rule, max_turns):
    """Both from what the purified episode said, and from the same said without any purification."""
    conversation, repairs, masked, saar, turns, raw = play(sandbox, (*said, answer), rule, max_turns)
    *_, unpurified, unpurified_raw = play(sandbox, (*said, answer), rule, 99, enabled=False)
    for recorded in (turns, unpurified):
        episode = purify_episode(unpurified_raw[:2], recorded, rule, tool_format="python", max_turns=max_turns)
        assert episode.conversation == conversation
        assert without_seconds(episode.repairs) == without_seconds(repairs)
        assert tuple(episode.masked_turns) == masked
        assert episode.raw_conversation == raw
        assert episode.as_info() == saar


@settings(max_examples=300)
@given(
    said=st.lists(st.sampled_from(SAID), max_size=9),
    statuses=st.randoms(use_true_random=False),
    rule=rules,
)
def test_what_holds_for_every_purified_history(said, statuses, rule):
    parse = get_tool_format("python").parse
    turns = []
    for number, action in enumerate(said):
        status = "malformed" if parse(action).code is None else statuses.choice(("ok", "error", "exit"))
        turns.append(Turn(action, f"{status} {number}", status))
    episode = purify_episode(START, turns, rule, tool_format="python")
    kept = episode.conversation
    assert kept[:2] == START
    observed = {turn.observation for turn in turns}
    assert all(message["content"] in observed for message in kept if message["role"] == "tool")
    for repair in episode.repairs:
        before = len(repair.history)
        assert kept[:before] == repair.history
        if repair.purified is None:
            continue
        assert kept[before : before + 2] == repair.purified.messages
        assert repair.purified.observation == repair.correction.observation
        old, new, last = (parse(turn.action) for turn in (repair.failures[0], repair.correction, repair.purified))
        assert last.code == new.code
        assert not any(turn.observation in [message["content"] for message in kept] for turn in repair.failures)
        if repair.outcome == "deep":
            assert repair.purified.action == repair.correction.action
        elif len(repair.failures) == 1:
            assert last.reasoning == old.reasoning
    if all(turn.tool_status == "ok" for turn in turns) or rule.strategy in ("none", "mask"):
        assert kept == (*START, *(message for turn in turns for message in turn.messages))
    if all(repair.purified for repair in episode.repairs):
        spared = [
            turn
            for number, message in enumerate(kept)
            if message["role"] == "tool"
            for turn in turns
            if turn.observation == message["content"]
            for turn in [replace(turn, action=kept[number - 1]["content"])]
        ]
        assert purify_episode(START, spared, rule, tool_format="python").conversation == kept


def test_a_thousand_histories_in_which_the_error_never_happened(sandbox):
    """Failing cells change what they can before they fail; the history and what runs later must not notice."""
    damage = [
        "total = 999\nraise ValueError",
        "log.append('bad')\n1/0",
        "import os\nos.environ['X'] = '1'\nos.chdir('/')\nnope",
        "open('note.txt', 'w').write('bad')\nassert False",
        "log.clear()\ndel total\nimport sys\nsys.exit(3)",
    ]
    rng = np.random.default_rng(0)
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox, max_turns=10), max_retries=3)

    def played(said):
        env.reset(seed=0)
        for action in said:
            conversation, *_, info = env.step(action)
        return conversation, info["saar"]

    repaired = 0
    for _ in range(1000):
        spared = [call("total = 0\nlog = []\nopen('note.txt', 'w').write('good')\nprint('ready')")]
        said = list(spared)
        for number in rng.integers(-9, 10, size=rng.integers(1, 3)):
            said += [call(damage[error]) for error in rng.integers(len(damage), size=rng.integers(0, 3))]
            good = f"total += {number}\nlog.append({number})\nimport os\nprint(total, log, open('note.txt').read(), "
            for turns in (said, spared):
                turns.append(call(good + "os.environ.get('X'), os.path.exists('note.txt'))"))
        conversation, saar = played(said)
        repaired += saar["shallow"] + saar["deep"]
        assert conversation == played(spared)[0]
    env.close()
    assert repaired > 800


def test_several_calls_in_a_turn_fail_as_one_and_can_be_corrected():
    text = f"{call('print(a)')}\n{call('print(b)')}"
    both = Turn(text, "Error: only one python block is allowed per turn", "malformed", "MalformedCall")
    episode = purified(both, ran("print(a)", reasoning="One.\n"))
    assert [message["content"] for message in episode.conversation[2:]] == [call("print(a)"), "42"]


def test_a_correction_that_does_not_parse_is_a_failed_correction():
    cut = Turn("Again.\n```python\nprint(", "Error: the code block is not closed", "malformed", "MalformedCall")
    episode = purified(failed("print(1"), cut, ran("print(1)"))
    assert outcomes(episode) == ["shallow"]
    assert episode.repairs[0].attempts == 2
    assert [message["content"] for message in episode.conversation[2:]] == [call("print(1)"), "42"]


def test_a_call_inside_thinking_is_no_correction():
    episode = purified(failed("boom"), Turn(f"<think>\n{call('print(1)')}\n</think>"))
    assert outcomes(episode) == ["abandoned"]
    assert len(episode.conversation) == 2 + 3


def test_an_answer_beside_a_call_is_part_of_its_reasoning():
    episode = purified(failed("prnt(1)", "\\boxed{1}:\n"), ran("print(1)", reasoning="Oh.\n"), Turn("\\boxed{1}"))
    assert episode.conversation[2]["content"] == call("print(1)", "\\boxed{1}:\n")
    assert outcomes(episode) == ["shallow"]


def test_an_outage_during_a_repair_leaves_the_failure_and_no_outcome():
    outage = Turn(call("print(1)"), None, "infrastructure_error")
    episode = purified(failed("boom"), outage)
    assert outcomes(episode) == [None]
    assert episode.conversation == (*START, *failed("boom").messages, *outage.messages)


def test_every_strategy():
    turns = failed("prnt(1)", "First.\n"), ran("print(1)", reasoning="Second.\n"), failed("zzz"), ran("print('other')")
    texts = {
        "saar": [call("print(1)", "First.\n"), call("print('other')")],
        "shallow": [call("print(1)", "First.\n"), call("print('other')")],
        "deep": [call("print(1)", "Second.\n"), call("print('other')")],
        "mask": [turn.action for turn in turns],
        "none": [turn.action for turn in turns],
    }
    for strategy, wanted in texts.items():
        episode = purified(*turns, strategy=strategy)
        assert [message["content"] for message in episode.conversation if message["role"] == "assistant"] == wanted
        assert episode.masked_turns == ([0, 2] if strategy == "mask" else [])
    assert outcomes(purified(*turns)) == ["shallow", "deep"]
    assert outcomes(purified(*turns, strategy="shallow")) == ["shallow", "shallow"]


def test_a_repair_says_what_it_cost():
    def sampled(code, seconds, status):
        text = call(code)
        ids = range(len(text))
        turn = Completion(text, ids, [-1.0] * len(text), ids)
        return Turn(turn, "out", status, seconds=seconds)

    turns = sampled("prnt(1)", 0.5, "error"), sampled("prin(1)", 0.25, "error"), sampled("print(1)", 2.0, "ok")
    (repair,) = purified(*turns).repairs
    assert repair.seconds == 2.75
    assert repair.hidden_tokens == len(call("prnt(1)")) + len(call("prin(1)"))
    assert repair.purified.action.grafted.count(False) == len("Step.\n")
    (unmeasured,) = purified(failed("a"), ran("b")).repairs
    assert unmeasured.seconds is None


def test_what_was_said_beyond_the_budget_is_dropped():
    turns = ran("print(1)"), failed("boom"), ran("print(2)"), ran("print(3)"), Turn("\\boxed{1}")
    assert len(purified(*turns, max_turns=2).conversation) == 2 + 4
    assert len(purified(*turns, max_turns=3).conversation) == 2 + 6
    late = purified(failed("boom"), Turn("\\boxed{1}"), max_turns=1)
    assert (len(late.conversation), outcomes(late), len(late.raw_conversation)) == (2 + 2, ["abandoned"], 2 + 3)


def test_bad_rules_are_refused():
    with pytest.raises(ConfigError, match="strategy must be one of saar, shallow, deep, mask, none, got 'shalow'"):
        PurificationRule(strategy="shalow")
    with pytest.raises(ConfigError, match="tool_format"):
        purify_episode(START, [], tool_format="xml")
    with pytest.raises(ConfigError, match=r"a number in \[0, 1\], got nan"):
        purified(failed("a"), ran("b"), similarity=lambda old, new: float("nan"))
