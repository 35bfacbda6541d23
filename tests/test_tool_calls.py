import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError
from cleaner_env.tool_calls import TOOL_FORMATS, get_tool_format

HERMES, PYTHON = get_tool_format("hermes"), get_tool_format("python")


def call(name="code_interpreter", arguments=None):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("name", TOOL_FORMATS)
@given(reasoning=st.text(alphabet="abc xyz.\n"), code=st.text(alphabet="abc=+()'\"\\ \n#é").map(str.strip))
def test_what_is_rendered_is_parsed_back(name, reasoning, code):
    tool_format = get_tool_format(name)
    reasoning = reasoning and reasoning + "\n"
    turn = tool_format.parse(tool_format.render(reasoning, code))
    assert (turn.reasoning, turn.code, turn.malformed) == (reasoning, code, None)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@given(text=st.text() | st.text(alphabet='<tool_call>/{}"`python\n think').map(lambda s: "<tool_call>" + s))
def test_parsing_never_raises_and_loses_no_text(name, text):
    turn = get_tool_format(name).parse(text)
    assert turn.text == text
    assert turn.reasoning + text[turn.call_start :] == text
    assert turn.code is None or turn.malformed is None


def test_a_turn_without_a_call_is_an_answer():
    for tool_format in (HERMES, PYTHON):
        turn = tool_format.parse("The answer is \\boxed{5}.")
        assert not turn.has_call
        assert turn.reasoning == "The answer is \\boxed{5}."


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "1"}}', "not closed"),
        ("<tool_call>\n{oops}\n</tool_call>", "not valid JSON"),
        ("<tool_call>\n[1]\n</tool_call>", "JSON object"),
        (call(name="search", arguments={"code": "1"}), "'search'"),
        (call(arguments={"query": "1"}), "arguments"),
        (call(arguments={"code": 7}), "arguments"),
        (call(arguments={"code": "1"}) * 2, "only one"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "not valid JSON"),
        (f"<tool_call>{'9' * 10_000}</tool_call>", "not valid JSON"),
    ],
)
def test_malformed_hermes_calls_say_what_is_wrong(text, complaint):
    turn = HERMES.parse(text)
    assert turn.has_call
    assert turn.code is None
    assert complaint in turn.malformed
    assert turn.call_text == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("```python\nprint(1)", "not closed"), ("```python\n1\n```\n```python\n2\n```", "only one")],
)
def test_malformed_fences_say_what_is_wrong(text, complaint):
    turn = PYTHON.parse(text)
    assert turn.code is None
    assert complaint in turn.malformed


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
def test_calls_inside_thinking_do_not_count(tool_format):
    thought = tool_format.render("<think>maybe ", "print(1)")
    if tool_format is PYTHON:
        thought = "<think>maybe\n" + tool_format.render("", "print(1)")
    assert not tool_format.parse(thought).has_call
    closed = thought + "\n</think>\n" + tool_format.render("", "print(2)")
    turn = tool_format.parse(closed)
    assert turn.code == "print(2)"
    assert turn.reasoning == thought + "\n</think>\n"


def test_other_fences_are_no_calls():
    assert not PYTHON.parse("```\nprint(1)\n```").has_call
    assert not PYTHON.parse("```json\n{}\n```").has_call
    assert not PYTHON.parse("inline ```python print(1)```").has_call


def test_text_after_the_call_has_no_effect():
    assert PYTHON.parse("```python\nx = 1\n```\nDone.").code == "x = 1"
    assert HERMES.parse(call(arguments={"code": "x = 1"}) + "\nDone.").code == "x = 1"


@pytest.mark.parametrize("name", ["xml", "", None, ["hermes"]])
def test_unknown_formats_are_refused_with_the_choices(name):
    with pytest.raises(ConfigError, match="hermes, python"):
        get_tool_format(name)


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
def test_thinking_that_the_prompt_opened_ends_at_its_tag(tool_format):
    draft = tool_format.render("Maybe:\n", "print(1)")
    turn = tool_format.parse(draft + "\nNo.\n</think>" + tool_format.render("", "print(2)"))
    assert turn.code == "print(2)"
    assert turn.malformed is None


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
def test_a_thinking_tag_inside_code_is_code(tool_format):
    turn = tool_format.parse(tool_format.render("", "print('<think>')"))
    assert turn.code == "print('<think>')"


def test_fences_of_other_line_ends_and_behind_a_tag_are_calls():
    assert PYTHON.parse("```python\r\nprint(1)\r\nprint(2)\r\n```\r\n").code == "print(1)\r\nprint(2)"
    turn = PYTHON.parse("<think>hm</think> ```python\nprint(1)\n```")
    assert (turn.code, turn.reasoning) == ("print(1)", "<think>hm</think> ")


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
@pytest.mark.parametrize("code", ["print('</think>')", "print('<think>x</think>')", "a = '</think>'\nb = '<think>'"])
@pytest.mark.parametrize("before", ["", "Let me see.\n", "<think>hm</think>\n", "opened by the prompt</think>\n"])
def test_thinking_tags_inside_a_call_are_code(tool_format, code, before):
    turn = tool_format.parse(tool_format.render(before, code))
    assert (turn.reasoning, turn.code, turn.malformed) == (before, code, None)


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
def test_a_draft_that_is_not_closed_ends_with_the_thinking(tool_format):
    opening = tool_format.render("", "").splitlines()[0]
    turn = tool_format.parse(f"{opening}\nhm\n</think>\n" + tool_format.render("", "print(2)"))
    assert (turn.code, turn.malformed) == ("print(2)", None)
    assert not tool_format.parse(f"{opening}\nhm\n</think>\nSix.").has_call


@pytest.mark.parametrize("tool_format", [HERMES, PYTHON])
@pytest.mark.parametrize(
    "repeated", ["<think></think>", "<think>", "</think>", "<tool_call>", "```python\n", "</tool_call>"]
)
def test_a_model_that_repeats_itself_is_parsed_like_any_other(tool_format, repeated):
    many = repeated * 20_000  # quadratic time would be minutes here
    call = tool_format.render("\n", "print(1)")
    turn = tool_format.parse(many + call)
    assert turn.text == many + call
    if repeated == "<think></think>":
        assert (turn.code, turn.call_start) == ("print(1)", len(many) + 1)
