from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, UsageError
from cleaner_env.tool_calls import TOOL_FORMATS, get_tool_format
from cleaner_env.wrappers.purification import Turn, purify

words = st.text(alphabet="abcdefgh =+()\n", max_size=40).map(lambda text: text.strip() or "x")
histories = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": words}),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@given(history=histories, reasons=st.tuples(words, words), codes=st.tuples(words, words), threshold=st.floats(0, 1))
def test_what_stays_and_what_goes(name, history, reasons, codes, threshold):
    tool_format = get_tool_format(name)
    old_reason, new_reason = (reason + "\n" for reason in reasons)
    failed = Turn(tool_format.render(old_reason, codes[0]), "ERROR TEXT")
    correction = Turn(tool_format.render(new_reason, codes[1]), "OUTPUT")

    made = purify(history, failed, correction, threshold, tool_format=name)

    *before, action, output = made.conversation
    assert before == history
    assert output == {"role": "tool", "content": "OUTPUT"}
    assert made.turn == Turn(action["content"], "OUTPUT")
    parsed = tool_format.parse(action["content"])
    assert parsed.code == codes[1]
    assert parsed.reasoning == (old_reason if made.similarity >= threshold else new_reason)
    assert made.decision == ("shallow" if made.similarity >= threshold else "deep")


def completion(text, first_id):
    """A completion with one token per character and an end-of-turn token."""
    n = len(text)
    return Completion(text, range(first_id, first_id + n + 1), [-1.0] * (n + 1), range(n + 1))


def test_tokens_follow_their_text():
    failed = Turn(completion("Try.\n```python\nprnt(1)\n```", 100), "NameError")
    correction = Turn(completion("Oh!!\n```python\nprint(1)\n```", 500), "1")
    shallow = purify((), failed, correction, 0.5, tool_format="python").turn.action
    assert shallow == "Try.\n```python\nprint(1)\n```"
    assert shallow.token_ids == (*range(100, 105), *range(505, 505 + len("```python\nprint(1)\n```") + 1))
    assert shallow.grafted == (False,) * 5 + (True,) * 23
    deep = purify((), failed, correction, 1.0, tool_format="python").turn.action
    assert deep == "Oh!!\n```python\nprint(1)\n```"
    assert deep.token_ids == correction.action.token_ids
    assert all(deep.grafted)
    assert not any(correction.action.grafted)


def test_a_malformed_call_is_compared_by_its_text():
    failed = Turn("So:\n<tool_call>\nprint(1)\n</tool_call>", "Error")
    correction = Turn(get_tool_format("hermes").render("Again:\n", "print(1)"), "1")
    made = purify((), failed, correction, 0.3)
    assert made.decision == "shallow"
    assert made.turn.action == get_tool_format("hermes").render("So:\n", "print(1)")


def test_turns_without_a_call_are_refused():
    call = Turn("```python\n1\n```", "1")
    with pytest.raises(UsageError, match="both call the tool"):
        purify((), Turn("just text", ""), call, tool_format="python")


def say(reasoning, code, name, behind=""):
    return get_tool_format(name).render(reasoning, code) + behind


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize(
    ("failed", "correction", "decision"),
    [
        (("Multiply.\n", "prnt('a')"), ("<think>x</think>\n", "print('</think>')"), "shallow"),
        (("Multiply.\n", "prnt('<think>')"), ("", "print('</think>')"), "shallow"),
        (("x</think>\n", "prnt('a')"), ("<think>x</think>\n", "print('</think><think>')"), "shallow"),
        # Behind the old reasoning, which opened no thinking, the tag would make all of it thinking.
        (("Multiply.\n", "prnt(1)"), ("<think>x</think>\n", "print(1)", "\nDone.</think>"), "deep"),
    ],
)
def test_a_purified_turn_makes_the_correction_s_call(name, failed, correction, decision):
    old, new = (Turn(say(*said[:2], name, *said[2:]), "out") for said in (failed, correction))
    made = purify((), old, new, 0, tool_format=name)
    assert made.decision == decision
    assert get_tool_format(name).parse(made.turn.action).code == correction[1]
    assert purify((), made.turn, new, 0, tool_format=name).turn.action == made.turn.action


@given(
    st.sampled_from([*TOOL_FORMATS]),
    *[st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", "'"]), max_size=6).map("".join)] * 5,
)
def test_tags_anywhere_never_lose_the_correction_s_call(name, reason, new_reason, code, new_code, behind):
    parse = get_tool_format(name).parse
    old, new = say(reason + "\n", code, name), say(new_reason + "\n", new_code, name, "\n" + behind)
    if parse(old).has_call and parse(new).has_call:
        kept, taken = parse(purify((), Turn(old, "E"), Turn(new, "1"), 0, tool_format=name).turn.action), parse(new)
        assert (kept.code, kept.malformed) == (taken.code, taken.malformed)


FAILED, CORRECTION = Turn(say("a\n", "prnt(1)", "python"), "E"), Turn(say("b\n", "print(1)", "python"), "1")


@pytest.mark.parametrize("threshold", [float("nan"), -1, -0.1, "0.5", None, True, [0.5]])
def test_a_threshold_is_a_number_of_at_least_0(threshold):
    with pytest.raises(ConfigError, match="threshold must be a number of at least 0, got "):
        purify((), FAILED, CORRECTION, threshold, tool_format="python")


@pytest.mark.parametrize(
    ("score", "similarity"),
    [(True, 1.0), (False, 0.0), (np.float32(0.5), 0.5), (np.float64(0.25), 0.25), (Fraction(1, 2), 0.5), (1, 1.0)],
)
def test_a_similarity_may_return_any_real_number(score, similarity):
    made = purify((), FAILED, CORRECTION, 0.5, tool_format="python", similarity=lambda first, second: score)
    assert (made.similarity, type(made.similarity)) == (similarity, float)
    assert made.decision == ("shallow" if similarity >= 0.5 else "deep")


@pytest.mark.parametrize("score", [float("nan"), 2, -0.1, 10**400, "0.5", None, [0.5]])
def test_a_similarity_that_is_none_is_refused(score):
    with pytest.raises(ConfigError, match=r"a similarity must be a number in \[0, 1\], got "):
        purify((), FAILED, CORRECTION, tool_format="python", similarity=lambda first, second: score)
