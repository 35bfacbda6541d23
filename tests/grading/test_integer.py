import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cleaner_env.errors import DataError
from cleaner_env.grading import grade_integer
from cleaner_env.grading.integer import parse_integer

INTEGERS = st.integers(0, 999)
DIGITS = ["{n}", "{n:03}", "{n:06}", "{n}.0", "{n}.", "+{n}", "0{n}.00"]
DRESSES = [
    "{}",
    " {} ",
    r"\text{{{}}}",
    r"\textbf{{ {} }}",
    r"\mathbf{{{}}}",
    r"\mathrm{{{}}}",
    "{{{}}}",
    "${}$",
    r"\({}\)",
    "({})",
    r"\left({}\right)",
    r"\boxed{{{}}}",
    r"\displaystyle {}",
    r"\large {}",
    r"\color{{red}}{}",
    r"\textcolor{{blue}}{{{}}}",
    "**{}**",
    "`{}`",
    r"\underline{{{}}}",
    r"$~{}~$",
    r"\ {}\ ",
    "\u200b{}\u00a0",
    r"\text{{Answer: }}{}",
    "Answer: {}",
]
UNITS = [
    "",
    r"^\circ",
    r"^\circ\text{C}",
    r"^{\circ}",
    "°",
    r"\%",
    "%",
    r"\text{ cm}",
    r"~\mathrm{m}^2",
    r"\text{ square units}",
    r"\text{ km/h}",
    r"\,\mathrm{cm^2}",
    " cm\u00b2",
    r" ^\circ C",
    " min",
    " paths",
    " ordered pairs",
    r"\text{ two-digit numbers in total}",
    r"\text{ sq. cm}",
    r"\text{ people}",
    " \u20ac",
]
EQUATIONS = [
    "",
    "x = ",
    "m+n=",
    r"m + n = 7 + 9 = ",
    r"\frac{m}{n} \cdot 2 = ",
    r"|z|^2=",
    r"\angle ABC = ",
    r"\gcd(a, b) = ",
    r"\text{Area} = ",
    "3 + 4 = m = ",
]
DECLARATIONS = [
    r"So \boxed{{{}}}.",
    r"$$\boxed{{{}}}$$ as was to be shown",
    r"Boxed in a frame: \fbox{{{}}}",
    r"\boxed {{{}}}",
    "Answer: {}",
    "**Final Answer:** {}",
    "- **Answer:** {}",
    "It adds up.\nThe final answer is: {}\n",
    "answer\uff1a{}",
    "Final answer:\n\n{}\n",
    "Final answer:\n$$\n{}\n$$\n",
    "Final Answer: The final answer is ${}$. I hope it is correct.",
    "Answer\uff1a{}",
]


@st.composite
def dressed(draw, number):
    text = draw(st.sampled_from(DIGITS)).format(n=number)
    wraps = draw(st.lists(st.sampled_from(DRESSES), max_size=2))
    unit = draw(st.sampled_from(UNITS)) if not wraps else ""
    text += unit
    for wrap in wraps:
        text = wrap.format(text)
    text = draw(st.sampled_from(EQUATIONS)) + text if not wraps else text
    return draw(st.sampled_from(DECLARATIONS)).format(text)


@given(st.data(), INTEGERS, INTEGERS)
def test_an_integer_in_any_dress_equals_itself_and_no_other(data, number, other):
    response = data.draw(dressed(number))
    assert grade_integer(response, str(number)).verdict == "correct", response
    if other != number:
        assert grade_integer(response, str(other)).verdict == "incorrect", response


@given(st.integers(1_000, 10**15))
def test_thousands_groups(number):
    plain = f"{number:,}"
    for separator in (",", "{,}", r"\,", r",\!"):
        assert parse_integer(plain.replace(",", separator)) == number


@pytest.mark.parametrize(
    ("response", "verdict", "extracted"),
    [
        (r"zero-padded: \boxed{016}", "correct", "16"),
        (r"first \boxed{84}, then, corrected, \boxed{16}", "correct", "16"),
        (r"it was \boxed{16} but the corners count twice: \boxed{96}", "incorrect", "96"),
        (r"Write \boxed for the result, or \boxed{}. It is \boxed{16}. Use \boxed{} only once.", "correct", "16"),
        (r"\boxed{16}" + " and then the check goes on and on" * 100, "correct", "16"),
        ("Each costs $8, all of them $40.\nFinal answer: $16", "correct", "16"),
        (r"\boxed{\text{the answer is } 16}", "correct", "16"),
        (r"\boxed{\text{the answer is not } 16}", "incorrect", r"\text{the answer is not } 16"),
        (r"\boxed{a = 3\\b = 16}", "incorrect", r"a = 3\\b = 16"),
        (r"\boxed{a = 3\hspace{1cm}b = 16}", "incorrect", r"a = 3\hspace{1cm}b = 16"),
        (r"\boxed{\text{not } x = 16}", "incorrect", r"\text{not } x = 16"),
        (r"\boxed{16 xy}", "incorrect", "16 xy"),
        (r"\boxed{16 sin}", "incorrect", "16 sin"),
        (r"\boxed{16 tens}", "incorrect", "16 tens"),
        (r"\boxed{16 quadrillion}", "incorrect", "16 quadrillion"),
        (r"\boxed{16 lakh}", "incorrect", "16 lakh"),
        (r"\boxed{16 fifths}", "incorrect", "16 fifths"),
        (r"\boxed{16 theta}", "incorrect", "16 theta"),
        (r"\boxed{16\text{th}}", "incorrect", r"16\text{th}"),
        (r"\boxed{16\text{ }^2}", "incorrect", r"16\text{ }^2"),
        (r"\boxed{16^\circ^2}", "incorrect", r"16^\circ^2"),
        (r"\boxed{0,016}", "incorrect", "0,016"),
        (r"\boxed{16...}", "incorrect", "16..."),
        (r"\boxed{x=3|y=16}", "incorrect", "x=3|y=16"),
        (r"\boxed{|x|=16}", "correct", "16"),
        (r"\boxed{16=x}", "correct", "16"),
        (r"\boxed{16 = 9 + 7}", "correct", "16"),
        (r"\boxed{15 = 16}", "incorrect", "15 = 16"),
        (r"\boxed{x = 16 = y}", "incorrect", "x = 16 = y"),
        (r"\boxed{16 = x \text{ or } y}", "incorrect", r"16 = x \text{ or } y"),
        ("\\boxed{\u20ac16}", "correct", "16"),
        ("\\boxed{\u00a316}", "correct", "16"),
        (r"The answer is not \boxed{16}", "correct", "16"),
        (r"\\boxed{15} no, \\boxed{16}", "correct", "16"),
        (r"\\boxed{16} no, \\boxed{15}", "incorrect", "15"),
        (r"\boxed{16} no, \\boxed{15}", "incorrect", "15"),
        (r"\boxed{15} \\\boxed{16}", "correct", "16"),
        ("Answer: ~16", "incorrect", "\u224816"),
        ("Answer: ~~16~~", "no_answer", None),
        ("Answer: ~~15~~ 16", "correct", "16"),
        (r"\boxed{\frac{32}{2}}", "incorrect", r"\frac{32}{2}"),
        (r"\boxed{1600}", "incorrect", "1600"),
        (r"\boxed{116}", "incorrect", "116"),
        (r"\boxed{-16}", "incorrect", "-16"),
        (r"\boxed{((16))}", "correct", "16"),
        (r"\boxed{(16)(2)}", "incorrect", "(16)(2)"),
        (r"\boxed{16.5}", "incorrect", "16.5"),
        (r"\boxed{16, 17}", "incorrect", "16, 17"),
        (r"\boxed{16 \text{ or } 17}", "incorrect", r"16 \text{ or } 17"),
        (r"\boxed{x = 3, y = 16}", "incorrect", "x = 3, y = 16"),
        (r"\boxed{m = 3\quad n = 16}", "incorrect", r"m = 3\quad n = 16"),
        (r"\boxed{x \ge 16}", "incorrect", r"x \ge 16"),
        (r"\boxed{16 \text{ million}}", "incorrect", r"16 \text{ million}"),
        (r"\boxed{16\pi}", "incorrect", r"16\pi"),
        (r"\boxed{16!}", "incorrect", "16!"),
        (r"\boxed{16i}", "incorrect", "16i"),
        (r"\boxed{1 6}", "incorrect", "1 6"),
        (r"\boxed{\{16\}}", "incorrect", r"\{16\}"),
        (r"\boxed{(-\infty, 16]}", "incorrect", r"(-\infty, 16]"),
        (r"\boxed{9^{9^{9^{9}}}}", "incorrect", r"9^{9^{9^{9}}}"),
        ("\\boxed{\uff11\uff16}", "correct", "16"),
        ("\\boxed{\u0661\u0666}", "incorrect", "\u0661\u0666"),
        ("Answer: 15\nNo: carry the one.\nAnswer: 16", "correct", "16"),
        ("Answer: 16\nIn a box: \\boxed{15}", "incorrect", "15"),
        ("The last number is 16", "no_answer", None),
        ("16", "no_answer", None),
        ("", "no_answer", None),
        ("The answer, after all, is: 16", "no_answer", None),
        (r"cut off: \boxed{16", "no_answer", None),
        (r"<think>\boxed{16}</think> I do not know.", "no_answer", None),
        (r"<think>\boxed{15}</think> Hence \boxed{16}", "correct", "16"),
        (r"Hence \boxed{16} <think>or rather \boxed{15}", "correct", "16"),
        (r"\boxed{15} is a guess.</think> Hence \boxed{16}", "correct", "16"),
    ],
)
def test_what_counts_as_the_answer_16(response, verdict, extracted):
    grade = grade_integer(response, "16")
    assert (grade.verdict, grade.extracted) == (verdict, extracted)


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "abc",
            "seven",
            "twenty",
            "sevens",
            "root two",
            "myriad",
            "elevenths",
            "fifteenths",
            "twentieths",
            "ninety-thirds",
        ),
        *("in binary", "octal", "hexadecimal", "repeating", "digits repeating", "thousand dollars", "seven units"),
        *("rejected", "invalid", "fails", "too small", "units too small", "almost", "approximately", "cm approximately"),
        *("except seven", "percent of x", "plus", "across", "paths or more", "paths are wrong", "k", "K", "x", "i", "e"),
    ],
)
@pytest.mark.parametrize("dress", [r"\boxed{{16 {}}}", r"\boxed{{16\text{{ {}}}}}", r"\boxed{{16\mathrm{{{}}}}}"])
def test_words_that_are_no_unit(unit, dress):
    assert grade_integer(dress.format(unit), "16").verdict == "incorrect"


@pytest.mark.parametrize(
    "unit",
    [
        *("cm", "square units", "sq. units", "km/h", "m/s", "ft", "in.", "inches", "cubic inches", "miles per hour", "mph"),
        *("ways", "distinct ways", "ordered pairs", "two-digit numbers", "three-element subsets", "months", "paths"),
        *("strictly increasing sequences", "real solutions", "colored balls", "in total", "years old"),
        *("people", "children", "women", "vertices", "percent", "dollars", "USD", "degrees", "min", "hours", "points"),
    ],
)
def test_words_that_are_a_unit(unit):
    assert grade_integer(rf"\boxed{{16\text{{ {unit}}}}}", "16").correct


@pytest.mark.parametrize("unit", ["way", "path", "solution", "square unit", "ordered pair", "hour", "degree"])
def test_one_may_have_a_unit_in_the_singular(unit):
    assert grade_integer(rf"\boxed{{1\text{{ {unit}}}}}", "1").correct


def test_negative_integers():
    assert grade_integer(r"\boxed{-16}", "-16").correct
    assert grade_integer("\\boxed{\u221216}", "-16").correct
    assert not grade_integer(r"\boxed{16}", "-16").correct


def test_gigantic_integers_are_read_or_refused_without_a_crash():
    assert grade_integer(rf"\boxed{{{'9' * 100_000}}}", "9").verdict == "incorrect"
    assert grade_integer(rf"\boxed{{{'9' * 200}}}", "9" * 200).verdict == "correct"


@pytest.mark.parametrize("gold", ["", "x", "(-\\infty, 4]", "1/2", "9" * 5000])
def test_a_reference_that_is_no_integer_is_refused(gold):
    with pytest.raises(DataError, match="must be an integer"):
        grade_integer(r"\boxed{4}", gold)


FRAGMENTS = st.sampled_from(
    [
        r"\boxed{",
        r"\fbox {",
        "}",
        "{",
        "Answer:",
        "\n",
        "<think>",
        "</think>",
        "=",
        "$",
        r"\text{",
        r"\left(",
        "12",
        ",",
        ".",
        " ",
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=8), max_size=40).map("".join))
def test_random_text_is_never_correct_by_accident(text):
    assume("987654321" not in text)
    assert grade_integer(text, "987654321").verdict in ("incorrect", "no_answer")


@pytest.mark.parametrize(
    "fragment",
    [r"\boxed{", r"\boxed{1}", "{", "}", "<think>", "</think>", "Answer:", "Answer: \n", " ", "answer ", r"\boxed", "9"],
)
def test_long_hostile_text_is_graded(fragment):
    assert not grade_integer(fragment * 50_000, "7").correct
    assert not grade_integer(r"\boxed{" + fragment * 50 + "}", "7").correct
