import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cleaner_env.errors import DataError
from cleaner_env.grading import grade_choice

DRESSES = [
    r"\boxed{{{}}}",
    r"\boxed{{\text{{{}}}}}",
    r"\boxed{{\textbf{{({})}}}}",
    r"$\boxed{{\mathrm{{{}}}}}$",
    "Answer: {}",
    "answer: ({}).",
    "**Answer:** **{}**",
    "Reasons.\n**Final answer: {}**",
    "The correct answer is: {}) 4.5 eV",
    "Answer: {}. The second option",
    "Answer: option {}",
    "Answer: {} (the para isomer)",
    "Answer:\n{}",
    "Answer: {} because the others violate parity",
    "Answer: {}, since the others violate parity",
    '- **Best answer:** "{}"',
    "Answer: \u201c{}\u201d",
    "Answer\uff1a\uff08{}\uff09",
    "Answer:\u00a0{}\u00a0",
    "Answer: {}!",
    "Answer: {}, which violates no symmetry",
    "Answer: the correct option is {}",
    "Answer:\n$$\n{}\n$$",
    r"\boxed{{\ {}\ }}",
    r"\boxed{{~{}}}",
    "\\boxed{{\u200b{}}}",
    r"\boxed{{\underline{{{}}}}}",
    r"\boxed{{\color{{red}}{}}}",
    r"\boxed{{\left({}\right)}}",
    r"\boxed{{\text{{Answer: }}{}}}",
    r"\boxed{{\text{{The answer is {}}}}}",
]


@given(st.sampled_from("ABCD"), st.sampled_from("ABCD"), st.sampled_from(DRESSES), st.booleans())
def test_a_letter_in_any_dress_is_itself_and_no_other(letter, other, dress, lower):
    response = dress.format(letter.lower() if lower else letter)
    assert grade_choice(response, letter).verdict == "correct", response
    if other != letter:
        assert grade_choice(response, other).verdict == "incorrect", response


@pytest.mark.parametrize(
    ("response", "verdict", "extracted"),
    [
        ("Answer: B\nI forgot the spin. Again:\nAnswer: A", "correct", "A"),
        ("Answer: A\nI forgot the spin. Again:\nAnswer: B", "incorrect", "B"),
        ("\\boxed{A}\nAnswer: B", "correct", "A"),
        ("The energy is \\boxed{3.5}.\nAnswer: A", "correct", "A"),
        ("ANSWER: AB", "no_answer", None),
        ("Answer: A or B", "no_answer", None),
        ("Answer: A, B", "no_answer", None),
        ("Answer: A) or B)", "no_answer", None),
        ("\\boxed{A, C}", "no_answer", None),
        ("Answer: A\nRather both.\nAnswer: A and B", "no_answer", None),
        ("ANSWER: None of the above", "no_answer", None),
        ("Answer: all of these hold", "no_answer", None),
        ("Answer: A. No wait, D.", "no_answer", None),
        ("Answer: A -> C", "no_answer", None),
        ("Answer: A) 3 or B) 4", "no_answer", None),
        ("Answer: A (incorrect)", "no_answer", None),
        ("Answer: A) no change in B", "correct", "A"),
        ("Answer: A) both (B) and (C)", "correct", "A"),
        ("\\boxed{A'est}", "no_answer", None),
        ("Answer: a close call", "no_answer", None),
        ("Answer: E", "no_answer", None),
        ("Answer: \u212b", "no_answer", None),
        ("A hard one. I can only guess.", "no_answer", None),
        ("A", "no_answer", None),
        ("I think that (A) fits", "no_answer", None),
        ("<think>Answer: A</think> Hm.", "no_answer", None),
        ("", "no_answer", None),
    ],
)
def test_what_counts_as_the_answer_a(response, verdict, extracted):
    grade = grade_choice(response, "A")
    assert (grade.verdict, grade.extracted) == (verdict, extracted)


def test_more_letters():
    assert grade_choice("Answer: F", "F", letters="ABCDEFGH").correct
    assert grade_choice("Answer: C", "B", letters="AB").verdict == "no_answer"


@pytest.mark.parametrize("gold", ["", "E", "a", "AB", "ABCD"])
def test_a_reference_that_is_no_letter_is_refused(gold):
    with pytest.raises(DataError, match="one of the letters ABCD"):
        grade_choice("Answer: A", gold)


@given(
    st.lists(
        st.sampled_from(["Answer: ", "\\boxed{", "}", "(", ")", "\n", "<think>"]) | st.text(max_size=8), max_size=30
    ).map("".join)
)
def test_a_letter_that_is_not_in_the_text_is_never_chosen(text):
    visible = text.upper().replace("ANSWER", "").replace("\\BOXED", "")
    assume("C" not in visible)
    assert not grade_choice(text, "C").correct


@pytest.mark.parametrize("fragment", [r"\boxed{A", r"\boxed{A}", "{", "}", "Answer: ", "Answer: A or ", "A, ", "((", " - "])
def test_long_hostile_text_is_graded(fragment):
    assert grade_choice(fragment * 30_000, "D").verdict in ("incorrect", "no_answer")
    assert grade_choice("Answer: A" + fragment * 300, "D").verdict in ("incorrect", "no_answer")
    assert grade_choice(r"\boxed{A" + fragment * 300 + "}", "D").verdict in ("incorrect", "no_answer")
