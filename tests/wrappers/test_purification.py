import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.conversation import Completion
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
    with pytest.raises(ValueError, match="both call the tool"):
        purify((), Turn("just text", ""), call, tool_format="python")
