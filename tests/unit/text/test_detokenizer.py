from hypothesis import given
from hypothesis import strategies as st

from streamgen.text.byte_fallback import ByteFallbackDetokenizer
from streamgen.text.byte_level import ByteLevelDetokenizer
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.window import WindowDetokenizer
from tests.unit.text.tokenizers_for_tests import (
    byte_fallback_backend,
    byte_level_backend,
    metaspace_backend,
    wordpiece_backend,
    wrap,
)

FFFD = "\ufffd"


def stream(tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in output), detokenizer.flush()]


def ids_below(limit: int, size: int = 24) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, limit), max_size=size)


def byte_ids(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


@given(ids_below(290), st.booleans())
def test_byte_level_is_exact_for_any_tokens(output, skip):
    tokenizer = wrap(byte_level_backend())
    assert isinstance(tokenizer.detokenizer([]), ByteLevelDetokenizer)
    assert "".join(stream(tokenizer, [], output, skip=skip)) == tokenizer.decode(output, skip_special_tokens=skip)


@given(st.text(max_size=12), ids_below(290), st.booleans())
def test_byte_level_is_exact_behind_any_text(prompt_text, output, skip):
    tokenizer = wrap(byte_level_backend())
    prompt = tokenizer.encode(prompt_text)
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    assert before + "".join(stream(tokenizer, prompt, output, skip=skip)) == whole


@given(st.text(max_size=8), st.integers(0, 24))
def test_byte_level_completes_the_character_that_the_prompt_began(text, cut):
    tokenizer = wrap(byte_level_backend())
    ids = tokenizer.encode(text)
    prompt, output = ids[:cut], ids[cut:]
    complete = tokenizer.decode(prompt).rstrip(FFFD) if tokenizer.decode(prompt) != text[: len(prompt)] else ""
    joined = "".join(stream(tokenizer, prompt, output))
    assert text.endswith(joined)
    assert complete + joined == text or tokenizer.decode(prompt) + joined == text


@given(ids_below(275), ids_below(275, 6), st.booleans(), st.booleans())
def test_byte_fallback_is_exact_where_runs_of_bytes_are_utf8(words, prompt, strip, skip):
    tokenizer = wrap(byte_fallback_backend(strip=strip))
    assert isinstance(tokenizer.detokenizer([]), ByteFallbackDetokenizer)
    # Every byte token is replaced by a whole character's: what models emit.
    samples = ["é", "你", "😀", "ก"]

    def valid(ids: list[int]) -> list[int]:
        out = []
        for token_id in ids:
            out += byte_ids(samples[token_id % 4].encode()) if 3 <= token_id < 259 else [token_id]
        return out

    prompt, output = valid(prompt), valid(words)
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    assert before + "".join(stream(tokenizer, prompt, output, skip=skip)) == whole


@given(ids_below(275), st.booleans())
def test_byte_fallback_never_shows_more_replacements_than_the_whole_decode(output, strip):
    tokenizer = wrap(byte_fallback_backend(strip=strip))
    joined = "".join(stream(tokenizer, [], output))
    whole = tokenizer.decode(output)
    assert joined.count(FFFD) <= whole.count(FFFD)
    if FFFD not in whole:
        assert joined == whole


def test_byte_fallback_bad_run_before_any_character_is_exact():
    tokenizer = wrap(byte_fallback_backend())
    output = [*byte_ids(b"\xff\xf0\x9f"), tokenizer.backend.token_to_id("▁world")]
    assert "".join(stream(tokenizer, [], output)) == tokenizer.decode(output) == FFFD * 3 + " world"


@given(ids_below(22), ids_below(22, 9), st.booleans())
def test_metaspace_is_exact(output, prompt, skip):
    tokenizer = wrap(metaspace_backend())
    assert isinstance(tokenizer.detokenizer([]), WindowDetokenizer)
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    assert before + "".join(stream(tokenizer, prompt, output, skip=skip)) == whole


@given(ids_below(12), ids_below(12, 9))
def test_wordpiece_is_exact(output, prompt):
    tokenizer = wrap(wordpiece_backend())
    whole = tokenizer.decode(prompt + output)
    assert tokenizer.decode(prompt) + "".join(stream(tokenizer, prompt, output)) == whole


def test_A1_characters_over_several_tokens_arrive_whole():
    for tokenizer, ids_of in (
        (wrap(byte_level_backend()), lambda char: byte_level_backend().encode(char).ids),
        (wrap(byte_fallback_backend()), lambda char: byte_ids(char.encode())),
    ):
        for char in ("😀", "你", "ř", "👩‍👩‍👧", "🇨🇿"):
            deltas = stream(tokenizer, [], ids_of(char))
            assert "".join(deltas) == char
            assert FFFD not in "".join(deltas)
            assert len(deltas) > 2


def test_A1_bytes_that_never_complete_do_not_hold_text_back():
    tokenizer = wrap(byte_level_backend())
    ids = [tokenizer.backend.token_to_id(token) for token in ("ð", "h", "e")]
    detokenizer = tokenizer.detokenizer([])
    assert [detokenizer.push(token_id) for token_id in ids] == ["", FFFD + "h", "e"]
    tokenizer = wrap(byte_fallback_backend())
    detokenizer = tokenizer.detokenizer([])
    assert [detokenizer.push(token_id) for token_id in byte_ids(b"\xf0\x9fab")] == ["", "", FFFD * 3, FFFD]


def test_A1_a_replacement_character_that_the_model_means_is_not_held_back():
    tokenizer = wrap(byte_level_backend())
    ids = byte_level_backend().encode(FFFD).ids
    deltas = stream(tokenizer, [], ids)
    assert deltas[len(ids) - 1] == FFFD
    assert deltas[-1] == ""


def test_A2_generation_that_ends_inside_a_character_gives_one_replacement():
    for count in (1, 2, 3):
        data = "😀".encode()[:count]
        byte_level = [byte_level_backend().token_to_id(char) for char in "ðŁĺ"[:count]]
        assert "".join(stream(wrap(byte_level_backend()), [], byte_level)) == FFFD
        assert "".join(stream(wrap(byte_fallback_backend()), [], byte_ids(data))) == FFFD
    assert wrap(byte_level_backend()).decode([byte_level_backend().token_to_id("ð")]) == FFFD


def test_A2_flush_is_empty_when_nothing_is_held():
    for backend in (byte_level_backend(), byte_fallback_backend(), metaspace_backend(), wordpiece_backend()):
        detokenizer = wrap(backend).detokenizer([])
        detokenizer.push(3)
        detokenizer.flush()
        assert detokenizer.flush() == ""


def test_A4_word_spaces_survive_one_by_one():
    for backend in (byte_fallback_backend(), byte_fallback_backend(strip=False), metaspace_backend()):
        tokenizer = wrap(backend)
        hello, world = backend.token_to_id("▁Hello"), backend.token_to_id("▁world")
        for prompt in ([], [1], [hello], [1, hello], [hello] * 50):
            output = [world, hello, world]
            expected = tokenizer.decode(prompt + output)[len(tokenizer.decode(prompt)) :]
            assert "".join(stream(tokenizer, prompt, output)) == expected
        assert stream(tokenizer, [hello], [world]) == [" world", ""]


def test_A4_special_tokens_between_words_do_not_lose_the_space():
    for backend in (byte_fallback_backend(), metaspace_backend()):
        tokenizer = wrap(backend)
        world, eos = backend.token_to_id("▁world"), backend.token_to_id("</s>")
        assert "".join(stream(tokenizer, [world, *[eos] * 40], [eos, world, eos, world])) == " world world"


def test_a_long_prompt_costs_no_more_than_a_short_one():
    class Counting(list):
        looked_at = 0

        def __getitem__(self, key):
            got = super().__getitem__(key)
            Counting.looked_at += len(got) if isinstance(key, slice) else 1
            return got

    for backend in (byte_level_backend(), byte_fallback_backend()):
        Counting.looked_at = 0
        wrap(backend).detokenizer(Counting([backend.token_to_id("a")] * 100_000))
        assert Counting.looked_at <= 64


def test_ids_that_do_not_exist_add_nothing_and_are_not_remembered():
    for backend in (byte_level_backend(), byte_fallback_backend(), metaspace_backend()):
        tokenizer = wrap(backend)
        assert stream(tokenizer, [], [-1, 10**6, 2**40, -(2**40)]) == [""] * 5
        assert tokenizer.token_text(-1) == tokenizer.token_text(10**6) == ""
        assert tokenizer.decode([-1, 2**40]) == ""
    assert all(token_id < 1000 for token_id in wrap(byte_level_backend())._skipping.pieces)


def test_a_long_output_keeps_the_window_short():
    for backend in (metaspace_backend(), wordpiece_backend()):
        detokenizer = wrap(backend).detokenizer([3] * 1000)
        longest = 0
        for _ in range(1000):
            detokenizer.push(3)
            longest = max(longest, len(detokenizer._ids))
        assert longest <= 16
