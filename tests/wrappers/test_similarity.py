import random
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError
from cleaner_env.wrappers import similarity
from cleaner_env.wrappers.similarity import (
    SIMILARITIES,
    ast_similarity,
    code_similarity,
    get_similarity,
    is_similar,
    line_similarity,
    reference_similarity,
    token_similarity,
)

repetitive = st.text(alphabet="ab(=\n\u00e9\U0001f600\ud800", max_size=300)


@given(first=repetitive | st.text(), second=repetitive | st.text())
def test_the_fast_ratio_is_difflibs_to_the_last_bit(first, second):
    assert code_similarity(first, second) == SequenceMatcher(None, first, second, autojunk=False).ratio()


def test_the_fast_ratio_is_difflibs_on_real_code():
    rng = random.Random(0)
    sources = [Path(similarity.__file__), Path(random.__file__), Path(pytest.__file__)]
    for source in sources:
        code = source.read_text(encoding="utf-8")[:3000]
        changed = "".join(character for character in code if rng.random() > 0.05)
        assert code_similarity(code, changed) == SequenceMatcher(None, code, changed, autojunk=False).ratio()


def test_without_the_fast_implementation_the_values_are_the_same(monkeypatch):
    expected = code_similarity("value = 10", "values = 11")
    monkeypatch.setattr(similarity, "FastSequenceMatcher", SequenceMatcher)
    assert code_similarity("value = 10", "values = 11") == expected == pytest.approx(18 / 21)


@given(first=repetitive, second=repetitive, threshold=st.floats(0, 1))
def test_bounds_never_decide_otherwise_than_the_similarity(first, second, threshold):
    score = code_similarity(first, second)
    for limit in (threshold, score):
        assert is_similar(first, second, limit) == (score >= limit)


@pytest.mark.parametrize("name", SIMILARITIES)
@given(first=st.text(max_size=60), second=st.text(max_size=60))
def test_every_similarity_is_a_ratio_and_one_for_equal_code(name, first, second):
    compare = get_similarity(name)
    assert 0 <= compare(first, second) <= 1
    assert compare(first, first) == 1


def test_frequent_characters_are_no_junk():
    code = "\n".join(f"total_{i} = compute(value_{i}, weight_{i})" for i in range(20))
    renamed = code.replace("total", "result")
    assert code_similarity(code, renamed) > 0.8


def test_the_reference_takes_frequent_characters_for_junk_and_counts_the_envelope():
    calls = ['{"name": "code_interpreter", "arguments": {"code": "' + code + '"}}' for code in ("a = 1", "b = 2")]
    assert reference_similarity("a = 1", "b = 2") == SequenceMatcher(None, *calls).ratio() > 0.9
    names = [f"v{i} = v{i + 1} * {i}" for i in range(60)]
    code, renamed = "; ".join(names), "; ".join(names).replace("v", "w")
    assert code_similarity(code, renamed) > 0.8
    assert reference_similarity(code, renamed) < 0.5


def test_tokens_weigh_the_same_whatever_their_length():
    assert token_similarity("x = a + 1", "x = a_very_long_name_indeed + 1") == 0.8
    assert token_similarity("x=1 # one", "x  =  1") == 1
    assert token_similarity("x = (1", "x = (1)") == code_similarity("x = (1", "x = (1)")


def test_lines_ignore_indentation():
    assert line_similarity("a = 1\nprint(a)", "if 1:\n    a = 1\n    print(a)") == 0.8


def test_syntax_trees_ignore_names_and_layout_but_not_constants_and_attributes():
    assert ast_similarity("total = price * 2", "t = (p\n  * 2)  # twice") == 1
    assert ast_similarity("x = 1", "x = 2") < 1
    assert ast_similarity("x.append(1)", "x.extend(1)") < 1
    for first, second in (
        ("import numpy", "import scipy"),
        ("from os import path", "from sys import path"),
        ("from os import path", "from os import sep"),
        ("f(key=1)", "f(value=1)"),
    ):
        assert ast_similarity(first, second) < 1
    assert ast_similarity("def f(x): return x", "def g(y): return y") == 1
    assert ast_similarity("f(" * 500, "g") == code_similarity("f(" * 500, "g")


@pytest.mark.parametrize("wrong", ["cosine", "", None, 3])
def test_an_unknown_similarity_is_refused(wrong):
    with pytest.raises(ConfigError, match="characters, tokens, lines, ast, reference or a function"):
        get_similarity(wrong)


@pytest.mark.parametrize("name", ["characters", "lines"])
def test_equal_code_is_known_at_once(name):
    code = "x = [" + "0, " * 500_000 + "]"  # the ratio of it would take hours
    assert get_similarity(name)(code, str(code)) == 1.0
