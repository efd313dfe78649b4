import re

from hypothesis import given
from hypothesis import strategies as st

from streamgen.text.stops import StopAutomaton, StopStrings
from streamgen.types import MAX_STOP_CHARS, MAX_STOP_STRINGS


def oracle(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """By definition: the first end of any stop string; of those that end there, the one that began first."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    finder = StopStrings(stops, include=include)
    deltas = []
    for piece in pieces:
        emit, matched = finder.push(piece)
        deltas.append(emit)
        if matched is not None:
            return deltas, matched
    return [*deltas, finder.flush()], None


letters = st.text("ab", min_size=1, max_size=5)


@given(
    st.lists(st.text("abc😀", max_size=6), max_size=8),
    st.lists(st.text("ab😀", min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_any_cut_of_any_text_ends_as_the_definition_says(pieces, stops, include):
    deltas, matched = run(pieces, stops, include=include)
    assert ("".join(deltas), matched) == oracle("".join(pieces), stops, include=include)


@given(st.lists(letters, max_size=8), st.lists(letters, min_size=1, max_size=4))
def test_no_more_is_held_back_than_a_stop_string_may_need(pieces, stops):
    finder = StopStrings(stops)
    seen = sent = ""
    for piece in pieces:
        emit, matched = finder.push(piece)
        seen, sent = seen + piece, sent + emit
        if matched is not None:
            return
        held = seen[len(sent) :]
        assert sent + held == seen
        may_become = [n for stop in stops for n in range(len(stop)) if n and seen.endswith(stop[:n])]
        assert len(held) == max(may_become, default=0)


def test_A5_stop_string_straddles_tokens():
    assert run(["DE", "F", "GH"], ["DEFG"]) == (["", "", ""], "DEFG")
    assert run(["xDE", "F", "GH"], ["DEFG"]) == (["x", "", ""], "DEFG")


def test_A5_stop_string_inside_a_token():
    assert run(["DEF"], ["DE"]) == ([""], "DE")
    assert run(["abcDEF"], ["DE"]) == (["abc"], "DE")


def test_A5_false_start_then_the_real_one():
    assert run(["a", "a", "a", "b"], ["aab"]) == (["", "", "a", ""], "aab")
    assert run(["DED", "EF"], ["DEF"]) == (["DE", ""], "DEF")


def test_A5_of_several_stop_strings_the_first_complete_one_wins():
    assert run(["abcd"], ["bc", "abcd"]) == (["a"], "bc")
    assert run(list("abcd"), ["abcd", "bc"]) == (["", "", "a"], "bc")
    assert run(["xyz"], ["yz", "xyz", "z"]) == ([""], "xyz")
    assert run(["xy!"], ["y", "xyz"]) == (["x"], "y")


def test_A5_unicode_stop_strings_match_by_character():
    assert run(["Ahoj ", "sv", "ě", "te"], ["svět"]) == (["Ahoj ", "", "", ""], "svět")
    assert run(["a👩", "‍👩 b"], ["👩‍👩"]) == (["a", ""], "👩‍👩")
    assert run(["a]-^\\b"], ["]-^\\"]) == (["a"], "]-^\\")


def test_A5_included_stop_string_is_sent_without_delay_and_cut_behind():
    assert run(["xD", "E", "FGH"], ["DEFG"], include=True) == (["xD", "E", "FG"], "DEFG")


def test_A5_nothing_is_sent_behind_a_match():
    finder = StopStrings(["b"])
    assert finder.push("abc") == ("a", "b")
    assert finder.push("more") == ("", None)
    assert finder.flush() == ""
    assert finder.matched == "b"


def test_A6_held_back_tail_is_flushed():
    assert run(["abZ", "Z"], ["ZZZZ"]) == (["ab", "", "ZZ"], None)
    assert run(["ab", "c"], ["ZZZZ"]) == (["ab", "c", ""], None)


def test_A6_held_back_tail_comes_with_the_text_that_frees_it():
    assert run(["Z", "Z", "!", "."], ["ZZZZ"]) == (["", "", "ZZ!", ".", ""], None)


def test_siblings_share_the_automaton_and_not_the_state():
    one, two = StopStrings(["ab"]), StopStrings(["ab"])
    assert one._automaton is two._automaton
    assert one.push("a") == ("", None)
    assert two.push("b") == ("b", None)


def test_adversarial_stop_strings_cost_a_constant_a_character():
    steps = 0

    class Counted(dict):
        def get(self, key, default=None):
            nonlocal steps
            steps += 1
            return super().get(key, default)

    stops = ["a" * (MAX_STOP_CHARS - 1 - i) + "b" for i in range(MAX_STOP_STRINGS)]
    automaton = StopAutomaton(stops)
    automaton._children = [Counted(children) for children in automaton._children]
    finder = StopStrings(stops)
    finder._automaton = automaton
    text = ("a" * (MAX_STOP_CHARS - 5) + "c") * 20
    sent = "".join(finder.push(piece)[0] for piece in re.findall("...?", text))
    assert sent + finder.flush() == text
    assert steps < 3 * len(text)
