import pytest

from cleaner_env.grading.extraction import answer_lines, boxes, peel, python_blocks, without_thinking


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("<THINK>", "</THINK>"),
        ("<think >", "</think >"),
        ("<thinking>", "</thinking>"),
        ("<thought>", "</thought>"),
        ("<reasoning>", "</reasoning>"),
        ("[THINK]", "[/THINK]"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<seed:think>", "</seed:think>"),
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ],
)
def test_thinking_is_left_out(opening, closing):
    assert without_thinking(f"a{opening}b{opening}c{closing}d") == "ad"
    assert without_thinking(f"a{opening}b") == "a"
    assert without_thinking(f"a{closing}b") == "b"
    assert without_thinking(f"{opening}a{opening}b{closing}c{closing}d") == "d"


@pytest.mark.parametrize("text", ["a thinking man", "x<think", "reasoning>", "<b>thought</b>", "[1]", ""])
def test_other_words_are_no_thinking(text):
    assert without_thinking(text) == text


def test_a_tag_in_a_string_of_a_program_is_no_thinking():
    program = """s = "<think>"\nt = '</think>'\nu = \'\'\'\n</think>\n\'\'\'\n"""
    answer = f"The program:\n```python\n{program}```\n"
    assert python_blocks(without_thinking(answer)).closed == (program,)
    assert without_thinking(f"<think>```python\n{program}```\nno</think>{answer}") == answer
    assert without_thinking(f"```python\ncut off\n</think>\n{answer}") == f"\n{answer}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\\boxed{1} no, \\boxed{2}", ["1", "2"]),
        (r"\boxed{1} no, \\boxed{2}", ["1", "2"]),
        (r"\boxed{1} \\\boxed{2}", ["1", "2"]),
        (r"{\boxed{1}}", ["1"]),
        (r"\boxed{ } \fbox{}", []),
        (r"\boxed{\boxed{1}}", ["1", r"\boxed{1}"]),
    ],
)
def test_boxes(text, expected):
    assert boxes(text) == expected


def test_what_is_struck_out_or_approximate_is_said_so():
    assert answer_lines("Answer: ~~3~~\nAnswer: ~~3~~ 4\nAnswer: ~5\nAnswer: $~6$") == ["", "4", "\u22485", "$~6$"]


def test_one_full_stop_comes_off_and_an_ellipsis_does_not():
    assert [peel(text) for text in ("7.", "$7$.", "7...")] == ["7", "7", "7..."]


@pytest.mark.parametrize(
    "text",
    [
        "Answer:\n" * 200_000,
        r"\boxed{" * 30_000 + "1" + "}" * 30_000,
        "\\" * 200_000,
        "```python\n" * 50_000 + "<think>",
        "```python\n" + "\"'" * 100_000 + "<think>",
        "<think>" * 50_000,
        "</think>" * 50_000,
    ],
)
def test_long_hostile_text_is_searched(text):
    visible = without_thinking(text)
    assert len(boxes(visible)) <= 100
    assert len(answer_lines(visible)) <= 100
