import tokenizers

from tests.unit.text.tokenizers_for_tests import byte_fallback_backend, byte_level_backend, with_bos, wrap


def test_text_round_trips():
    tokenizer = wrap(byte_level_backend())
    for text in ("", "hello wěrld 😀", "<think>two words</think>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_A12_exactly_one_bos_whoever_writes_it():
    bare, processed = byte_level_backend(), with_bos(byte_level_backend())
    bos = bare.token_to_id("<s>")
    for tokenizer in (wrap(bare, add_bos=True), wrap(processed), wrap(processed, add_bos=True)):
        for text in ("hello", "<s>hello"):
            assert tokenizer.encode(text).count(bos) == 1
            assert tokenizer.encode(text)[0] == bos
        assert tokenizer.encode("") == [bos]
        # What a chat template wrote is encoded as it stands.
        assert tokenizer.encode("<s>hello", add_special_tokens=False).count(bos) == 1
        assert tokenizer.encode("hello", add_special_tokens=False).count(bos) == 0
    assert bos not in wrap(bare).encode("hello")


def test_eos_is_added_once_if_the_tokenizer_says_so():
    tokenizer = wrap(byte_level_backend(), add_bos=True, add_eos=True)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_ids[0]
    for text in ("hello", "<s>hello", "hello</s>", "<s>hello</s>"):
        ids = tokenizer.encode(text)
        assert (ids[0], ids[-1], ids.count(bos), ids.count(eos)) == (bos, eos, 1, 1)


def test_a_tokenizer_file_cannot_cut_or_pad_a_prompt():
    backend = tokenizers.Tokenizer.from_str(byte_level_backend().to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    assert len(wrap(backend).encode("abcdefgh")) == 8


def test_token_text_keeps_the_space_and_shows_part_of_a_character():
    words, data = wrap(byte_fallback_backend()), wrap(byte_level_backend())
    assert words.token_text(words.backend.token_to_id("▁world")) == " world"
    assert words.token_bytes(3 + 0xF0) == b"\xf0"
    assert data.token_text(data.backend.token_to_id("ð")) == "\ufffd"
    assert data.token_text(data.eos_token_ids[0]) == "</s>"


def test_vocab_size_counts_up_to_the_largest_id():
    tokenizer = wrap(byte_level_backend())
    largest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    assert tokenizer.vocab_size == largest + 1
