import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError, DataError
from cleaner_env.grading import expression, grade_expression

pytest.importorskip("math_verify")


def verdict(answer, gold, **options):
    return grade_expression(f"So \\boxed{{{answer}}}.", gold, **options).verdict


EQUAL = [
    (r"\frac12", "0.5"),
    (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    (r"0.50", r"\frac{1}{2}"),
    (r"\frac{2}{4}", r"\frac{1}{2}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"1+x^2", "x^2+1"),
    (r"(x+1)^2", "x^2+2x+1"),
    (r"x = 5", "5"),
    (r"5", "x = 5"),
    (r"f(x) = 2x", "2x"),
    (r"(-\infty,4]", r"(-\infty, 4]"),
    (r"\left(-\infty, 4\right]", r"(-\infty, 4]"),
    (r"\left[0,\frac{1}{2}\right)", r"[0, 0.5)"),
    (r"x \in [1,2]", "[1, 2]"),
    (r"\{1, 2, 3\}", r"\{3, 2, 1\}"),
    (r"2, 1", r"\{1, 2\}"),
    (r"1 \text{ or } 2", "2, 1"),
    (r"x = 1 \text{ or } x = 2", "1, 2"),
    (r"\pm 3", "-3, 3"),
    (r"(1, 2)", "(1,2)"),
    (r"(\frac{1}{2}, 3, 4)", "(0.5, 3, 4)"),
    (r"50\%", r"\frac{1}{2}"),
    (r"50\%", "50"),
    (r"1{,}016", "1016"),
    ("1,016", "1016"),
    (r"\pi", r"\pi"),
    (r"2^{10}", "1024"),
    (r"90^\circ", "90"),
    (r"\text{north}", "north"),
    (r"(-\infty,0)\cup(1,\infty)", r"(-\infty, 0) \cup (1, \infty)"),
    (r"\frac{\pi}{4}", r"\frac{2\pi}{8}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    (r"0.1\overline{6}", r"\frac{1}{6}"),
    (r"+\infty", r"\infty"),
    (r"\varnothing", r"\emptyset"),
    ("1e3", "1000"),
    (r"5\text{ cm}", "5"),
    (r"5 \text{ cm}", r"5\,\mathrm{cm}"),
    ("1011_2", r"1011_{2}"),
    ("1011", r"1011_{2}"),
    ("y = 2, x = 1", "x = 1, y = 2"),
]
UNEQUAL = [
    ("0.333333", r"\frac{1}{3}"),
    ("0.3333333333333333333333", r"\frac{1}{3}"),
    ("1.414214", r"\sqrt{2}"),
    ("3.14159265358979", r"\pi"),
    ("3.14", r"\pi"),
    ("300", "3"),
    ("100001", "100000"),
    ("1", r"\{1, 2\}"),
    (r"\{1, 2\}", "1"),
    ("1, 2, 3", "1, 2"),
    ("1, 2, 2", "1, 2"),
    ("(2, 1)", "(1, 2)"),
    ("(1, 2)", "[1, 2]"),
    ("(1, 2]", "(1, 2)"),
    ("(3, 1)", "(5, 2)"),
    (r"(1, 2)", r"\{1, 2\}"),
    (r"(-\infty, 4)", r"(-\infty, 4]"),
    (r"(-\infty,0)\cup(2,\infty)", r"(-\infty, 0) \cup (1, \infty)"),
    ("x < 2", "2"),
    (r"x = \frac12", r"y = \frac12"),
    (r"\text{north}", "south"),
    ("5x", "5"),
    ("-3", "3"),
    (r"\frac{1}{2}", "2"),
    (r"\sqrt{3}", "3"),
    (r"\pm 3", "3"),
    (r"9^{9^{9^{9}}}", "9"),
    ("x = 5", "y = 5"),
    ("x = 1, y = 2", "x = 2, y = 1"),
    (r"x \approx \frac12", "0.5"),
    (r"0.\overline{3}", "0.3"),
    (r"2.5\text{ million}", "2.5"),
    (r"\frac12\text{ dozen}", "0.5"),
    (r"5.5\text{ cm}", r"5.5 \text{ m}"),
    (r"5\text{ cm}", r"5 \text{ m}"),
    ("1011_2", "1011_3"),
    ("1011_2", "1011"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
]


@pytest.mark.parametrize(("answer", "gold"), EQUAL)
def test_equal(answer, gold):
    assert verdict(answer, gold) == "correct"


@pytest.mark.parametrize(("answer", "gold"), UNEQUAL)
def test_unequal(answer, gold):
    assert verdict(answer, gold) == "incorrect"


DRESSES = [
    r"\frac{{{p}}}{{{q}}}",
    r"\dfrac{{{p}}}{{{q}}}",
    "{p}/{q}",
    "${p}/{q}$",
    r"x = \tfrac{{{p}}}{{{q}}}",
    r"\frac{{{pp}}}{{{qq}}}",
]


@settings(max_examples=60)
@given(st.integers(1, 99), st.integers(2, 99), st.integers(1, 99), st.integers(2, 99), st.sampled_from(DRESSES))
def test_a_fraction_in_any_dress_equals_itself_and_no_other(p, q, r, s, dress):
    answer = dress.format(p=p, q=q, pp=3 * p, qq=3 * q)
    expected = "correct" if p * s == r * q else "incorrect"
    assert verdict(answer, f"\\frac{{{p}}}{{{q}}}") == "correct"
    assert verdict(answer, f"\\frac{{{r}}}{{{s}}}") == expected


@settings(max_examples=40)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_a_set_equals_itself_in_any_order_and_no_part_of_it(members, random):
    shuffled = random.sample(members, len(members))
    gold = "\\{" + ", ".join(map(str, members)) + "\\}"
    assert verdict(", ".join(map(str, shuffled)), gold) == "correct"
    assert verdict(", ".join(map(str, shuffled[1:])), gold) == "incorrect"
    assert verdict(", ".join(map(str, [*shuffled, 51])), gold) == "incorrect"


def test_which_text_is_the_answer():
    assert grade_expression(r"\boxed{1} then \boxed{\frac12}", "0.5").verdict == "correct"
    assert grade_expression("Answer: $\\frac{1}{2}$", "0.5").verdict == "correct"
    assert grade_expression(r"<think>\boxed{\frac12}</think>", "0.5").verdict == "no_answer"
    assert grade_expression(r"It is \frac12", "0.5").verdict == "no_answer"
    assert grade_expression("", "0.5").verdict == "no_answer"


@pytest.mark.parametrize(
    "bomb", [r"9^{9^{9^{9}}}", r"10^{10^{10}}!", r"\sqrt{2}^{\sqrt{2}^{9^{9^9}}}", "((" * 200 + "1" + "))" * 200]
)
def test_a_comparison_that_explodes_is_killed_in_time(bomb):
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"  # Started.
    begun = time.monotonic()
    assert verdict(bomb, r"\frac{1}{2}", time_limit_s=1.5) == "incorrect"
    assert time.monotonic() - begun < 30
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"


def test_a_comparison_that_is_killed_does_not_cost_the_next_one_a_start():
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"
    process = expression._worker._process
    assert verdict(r"9^{9^{9^{9}}}", r"\frac{1}{2}", time_limit_s=0.5) == "incorrect"
    assert verdict(r"\frac{1}{4}", "0.25") == "correct"
    assert expression._worker._process is process
    assert process.poll() is None


def test_a_killed_worker_is_replaced():
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"
    expression._worker._process.kill()
    expression._worker._process.wait()
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"


def test_a_forked_child_has_a_worker_of_its_own():
    assert verdict(r"\frac{1}{2}", "0.5") == "correct"
    parent = expression._worker._process
    assert parent.poll() is None
    code = (
        "import os, sys\n"
        "from cleaner_env.grading import expression\n"
        "assert expression.same_expression('0.5', '\\\\frac{1}{2}')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    equal = expression.same_expression('0.25', '\\\\frac{1}{4}')\n"
        "    expression._worker.close()\n"
        "    os._exit(0 if equal else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert expression.same_expression('0.125', '\\\\frac{1}{8}')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_bad_references_are_refused():
    for gold in ("", "  ", "x" * 1001):
        with pytest.raises(DataError, match="reference answer"):
            verdict("1", gold)


def test_without_math_verify_the_error_says_what_to_install(monkeypatch):
    expression._worker.close()
    monkeypatch.setattr(expression, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'cleaner-env\[math\]'"):
        verdict("0.25", r"\frac{1}{4}")
