"""Patterns of clients: the same matches as a regular expression has, in a time that no pattern can stretch."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.patterns import compile_pattern
from barnabas.errors import BrokerError, ErrorCode

TEXTS = [
    "",
    "a",
    "b",
    "aa",
    "ab",
    "ba",
    "abc",
    "aab",
    "A",
    "a-1",
    "orders-42",
    "x_y",
    "a\nb",
    "ä",
    "]",
    "{",
    "a{",
    "..",
    "-",
]
# Where RE2 and Python mean the same.
PATTERNS = [
    *(
        "a",
        "ab",
        "a|b",
        "a*",
        "a+",
        "a?",
        "(a|b)*",
        "(?:ab)+",
        "a{2}",
        "a{1,}",
        "a{0,2}b?",
        "(a|b){2,3}",
        ".",
        ".*",
        "..",
        ".+b",
    ),
    *(
        "[ab]",
        "[^ab]",
        "[a-c]+",
        "[^a-c]*",
        "[]a]",
        "[a\\-]+",
        "[a-]+",
        "\\d+",
        "\\w*",
        "\\W",
        "[\\d\\w]+",
        "[\\D]",
        "\\s",
        "\\.",
    ),
    *(
        "orders-\\d+",
        "(orders|payments)-[0-9]{2}",
        "(?i)ab",
        "(?i:A)b",
        "(?s).*",
        "(?s:a.b)",
        "a.b",
        "^a$",
        "^a|b$",
        "a^b",
        "a$b",
    ),
    *(
        "(?P<name>a)b",
        "",
        "()",
        "a||b",
        "(|a)b",
        "a{",
        "{",
        "a{x}",
        "\\x61",
        "(a*)*",
        "(a*)+b",
        "(a?){3}",
        "a*?b",
        "a+?",
        "\\Aa\\Z".replace("Z", "z"),
    ),
    *("((a)(b)?)+", "[.]", "[*+?]", "x_[xyz]", "ä", "[à-ü]"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_matches_as_a_regular_expression(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    judge = re.compile(pattern.replace("\\z", "\\Z"), re.ASCII)
    for text in TEXTS:
        assert compiled.fullmatch(text) is (judge.fullmatch(text) is not None), (pattern, text)


def leaf() -> st.SearchStrategy[str]:
    return st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "1"])


def branch(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    )


@given(st.recursive(leaf(), branch, max_leaves=6), st.lists(st.text("ab1c", max_size=6), min_size=1, max_size=8))
def test_any_pattern_matches_as_a_regular_expression(pattern: str, texts: list[str]) -> None:
    compiled = compile_pattern(pattern)
    judge = re.compile(pattern)
    for text in texts:
        assert compiled.fullmatch(text) is (judge.fullmatch(text) is not None)


def test_what_only_re2_knows() -> None:
    assert compile_pattern("\\Qa.b\\E+").fullmatch("a.bb") or compile_pattern("\\Qa.b\\E").fullmatch("a.b")
    assert not compile_pattern("\\Qa.b\\E").fullmatch("axb")
    assert compile_pattern("[[:alpha:]_]+").fullmatch("a_B")
    assert not compile_pattern("[[:^digit:]]").fullmatch("7")
    assert compile_pattern("\\x{1F600}").fullmatch("\U0001f600")
    assert compile_pattern("(?<name>a)").fullmatch("a")
    assert compile_pattern("a{,2}").fullmatch("a{,2}")  # a brace that stands for itself


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(",
            ")",
            "(a",
            "a)",
            "[",
            "[a",
            "[z-a]",
            "*",
            "+a",
            "a**",
            "a|*",
            "(?",
            "(?x)a",
            "(?=a)",
            "(?!a)",
            "(?<=a)b",
        ),
        *("\\1", "\\b", "\\p{L}", "\\", "a{1001}", "a{2,1}", "[[:none:]]", "\\xZZ", "(?P<1>a)", "(?m)a", "a" * 1001),
        *("(" * 200 + ")" * 200, "((a{100}){100}){100}", "\\x{110000}"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BrokerError) as refused:
        compile_pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@given(st.text("ab(|)*+?{}[]^$.\\-:<>=!1,dQEPxi", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        compile_pattern(pattern).fullmatch("ab")
    except BrokerError as refused:
        code = refused.code
    else:
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
    assert code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", ".*.*.*.*b", "(a|aa)+b", "a{0,100}a{0,100}b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()
    compiled = compile_pattern(pattern)
    for _ in range(20):
        assert not compiled.fullmatch("a" * 2_000)
    assert time.process_time() - began < 20, "linear: a backtracking matcher takes years"
