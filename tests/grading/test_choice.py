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
    "Answer: {} is correct",
    "Answer: {}) K",
    "Answer: ({}) I",
    r"\boxed{{{}. K}}",
    "Answer: {}) AND gate",
    "Answer: {}) NOR gate",
    "Answer: {}) or-gate",
    "Answer: {}) OR",
    "Answer: {}) A \u2192 B",
    "Answer: {}) X -> Y",
    "Answer: {}) there is no D",
    "Answer: {}) No change",
    "Answer: {}. No, because the entropy rises",
    "Answer: {}) False",
    "Answer: {}) is not conserved",
    "Answer: {}. It is not possible to tell",
    "Answer: {}) vitamin D deficiency",
    "Answer: {}) f(A, B) = 0",
    "Answer: {}) A + B -> D",
    "Answer: {}) B cells and T cells",
    "Answer: {}. Wait time distribution",
    "Answer: {}. Let me know if you need more detail",
    "Answer: {}, because (A) and B) violate parity",
    "Answer: {} (as A would need 3 eV)",
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
        ("Answer: A. B is incorrect, for it has the wrong sign", "correct", "A"),
        ("Answer: A. Not B.", "correct", "A"),
        ("Answer: A (not B)", "correct", "A"),
        ("Answer: A) B and D", "correct", "A"),
        ("Answer: A. All of the above (B, C and D)", "correct", "A"),
        ("Answer: ~~A~~", "no_answer", None),
        ("Answer: ~~B~~ A", "correct", "A"),
        ("\\boxed{A = 5}\nAnswer: A", "correct", "A"),
        ("\\boxed{A(n,2)}", "no_answer", None),
        ("\\boxed{A(t)=4}", "no_answer", None),
        ("\\boxed{A (x + y) = 3}", "no_answer", None),
        ("\\boxed{A'}", "no_answer", None),
        ("Answer: A\nAnswer: not A", "no_answer", None),
        ("Answer: A\nAnswer: A is wrong", "no_answer", None),
        ("Answer: A\nAnswer: A \u2192 B", "no_answer", None),
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


@pytest.mark.parametrize(
    "text",
    [
        # denied
        *("C is wrong", "(C) is wrong", "(C) is incorrect", "(C) is not correct", "C: wrong", "C - wrong", "(C)? No."),
        *(
            "C) is wrong",
            "C (wrong)",
            "C. Incorrect.",
            "C) cannot be right",
            "C) 5 eV is wrong",
            "(C) isn't correct",
            "not C",
        ),
        "(C) is wrong; the answer is (D)",
        # taken back
        *("C. Wait, D is correct.", "C. Wait, it's D.", "C. Actually, the answer is D.", "C. Scratch that, D.", "C, no, D"),
        *(
            "C. Let me reconsider: D",
            "C (I changed my mind: D)",
            "C. Hmm, D is better.",
            "C. But D is also right.",
            "C - no, D",
        ),
        *(
            "C. It should be D.",
            "C. I'd go with D.",
            "C. D instead",
            "C \u2192 D",
            "(C) -> D",
            "C; D",
            "C. No, D",
            "c) wait, d",
        ),
        # several
        *("C) mass, D) charge", "(C) 5, (D) 6", "C: true, D: false", "C. mass; D. charge", "C. D. A. B.", "C) D) A)"),
        *(
            "C, as well as D",
            "C (the mass) and D (the charge)",
            "C: 5, D: 3",
            "(C) (D)",
            "(C) mass, D) charge",
            "C and D are correct",
            "c) 5, d) 6",
        ),
        *("C. Possibly D.", "C (or maybe D)", "C) and D) are wrong, so A", "C) 3 or D) 4", "C/D", "C-D"),
    ],
)
@pytest.mark.parametrize("form", ["Answer: {}", r"\boxed{{\text{{{}}}}}"])
def test_a_letter_that_is_denied_taken_back_or_not_alone_is_no_choice(text, form):
    assert grade_choice(form.format(text), "C").verdict == "no_answer"


@pytest.mark.parametrize(
    ("option", "comment", "verdict"),
    [
        ("A", "A", "correct"),
        ("is incorrect", "is incorrect", "correct"),
        ("Wait, D", "wait,  D.", "correct"),
        ("(A) both (B) and (D)", "(A) both (B) and (D)", "correct"),
        (r"$\pi$ or B", r"\pi or B, as it must be", "correct"),
        ("A", "A is wrong", "no_answer"),
        ("A", "A, D) s", "no_answer"),
        ("A", "A. Wait, it is D", "no_answer"),
        ("A", "B", "no_answer"),
    ],
)
def test_the_text_of_the_option_is_left_out_of_account(option, comment, verdict):
    assert grade_choice(f"Answer: (C) {comment}", "C", options=["p", "q", option, "s"]).verdict == verdict


def test_there_is_one_option_for_each_letter():
    with pytest.raises(DataError, match="one option for each of the letters ABCD, got 1"):
        grade_choice("Answer: A", "A", options=["p"])


def test_more_letters():
    assert grade_choice("Answer: A) x", "A", letters="A").correct
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


@pytest.mark.parametrize(
    "fragment",
    [
        *(
            r"\boxed{A",
            r"\boxed{A}",
            r"\boxed{1}",
            "{",
            "}",
            "Answer: ",
            "Answer:\n",
            "Answer: A or ",
            "A, ",
            "((",
            " - ",
            "no, ",
        ),
        *("Answer: option" + " " * 30, r"\," * 30 + "x", ". ", "or B "),
    ],
)
def test_long_hostile_text_is_graded(fragment):
    assert grade_choice(fragment * 30_000, "D").verdict in ("incorrect", "no_answer")
    assert grade_choice("Answer: A" + fragment * 300, "D").verdict in ("incorrect", "no_answer")
    assert grade_choice(r"\boxed{A" + fragment * 300 + "}", "D").verdict in ("incorrect", "no_answer")
