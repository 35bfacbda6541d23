"""Random strings through every grader: no crash, no hang, and never correct by accident."""

import random

import pytest

from cleaner_env.grading import CodeTest, CodeTests, Judge, grade_choice, grade_expression, grade_integer, judge_code
from cleaner_env.sandbox import make_sandbox

PIECES = [
    *(
        "\\boxed{",
        "\\fbox{",
        "}",
        "{",
        "Answer:",
        "\n",
        "<think>",
        "</think>",
        "=",
        "$",
        "\\text{",
        "\\frac",
        "\\sqrt",
        "^",
    ),
    *("\\left(", "\\right)", "(", ")", "[", "]", "12", "7", "x", ",", ".", " ", "+", "-", "*", "/", "\\pm", "\\cup", "_"),
    *("\\%", "\\pi", "!", "\\{", "\\}", "```python\n", "```", "print(", "input()", "import os", "def f(x):\n    return "),
    *(
        "\x00",
        "\ud800",
        "\u0661",
        "\U0001f600",
        "\\begin{pmatrix}",
        "&",
        "\\\\",
        "|",
        "\\le",
        "<",
        ">",
        "E",
        "F",
        "Option ",
    ),
    *("'", '"', "\\infty"),
]


def random_strings(count):
    generator = random.Random(20261129)
    for _ in range(count):
        pieces = [
            generator.choice(PIECES) if generator.random() < 0.9 else chr(generator.randrange(1, 0x3000))
            for _ in range(generator.randrange(1, 25))
        ]
        yield "".join(pieces)


def test_integers_and_choices():
    for text in random_strings(10_000):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}"):
            assert grade_integer(response, "987654321").verdict in ("incorrect", "no_answer")
            assert grade_choice(response, "K", "EFGHIJK").verdict in ("incorrect", "no_answer")


def test_expressions():
    pytest.importorskip("math_verify")
    for text in random_strings(2_000):  # The benchmark does the rest.
        response = f"\\boxed{{{text}}}"
        assert grade_expression(response, r"\frac{987654321}{1234}", 2.0).verdict in ("incorrect", "no_answer")


def test_programs():
    tests = CodeTests((CodeTest("5\n", "987654321\n"),), time_limit_s=1.0)
    run = 0
    with make_sandbox("local") as sandbox, Judge(sandbox, workers=2) as judge:
        for number, text in enumerate(random_strings(10_000)):
            in_block = f"```python\n{text}\n```" if number % 50 == 0 else text
            judgement = judge_code(in_block, tests, sandbox, judge=judge)
            assert judgement.grade.verdict in ("incorrect", "no_answer")
            run += bool(judgement.results)
    assert run >= 100
