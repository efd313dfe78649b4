import math

import numpy as np
import pytest

from streamgen.errors import ModelLoadError
from streamgen.loader.gguf_config import read_gguf_config, read_gguf_sampling
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.hf_config import MAX_VOCAB
from streamgen.models.config import GenerationDefaults, RopeConfig
from tests.unit.loader.gguf_for_tests import HEAD_DIM, VOCAB, Q, decoder_metadata, decoder_weights, write_gguf


def read(tmp_path, arch="llama", *, extra=None, tensors=None, **changes):
    metadata = decoder_metadata(arch, **{key.replace("__", "."): value for key, value in changes.items()})
    path = write_gguf(tmp_path / "m.gguf", metadata | (extra or {}), decoder_weights() | (tensors or {}), arch=arch)
    return read_gguf_config(GGUFFile(path), bos_token_id=1, eos_token_ids=(2, 3))


def refused(tmp_path, match, **changes):
    with pytest.raises(ModelLoadError, match=match) as caught:
        read(tmp_path, **changes)
    assert "m.gguf" in caught.value.message


def test_shape_and_ids(tmp_path):
    config = read(tmp_path)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (1, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.max_position_embeddings, config.rms_norm_eps) == (VOCAB, 512, 1e-5)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2, 3))
    assert config.rope == RopeConfig()
    assert config.tie_word_embeddings
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm) == (False,) * 4


def test_variants_are_seen_in_the_tensor_table(tmp_path):
    names = ("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias", "output.weight")
    config = read(tmp_path, tensors={name: np.zeros((8, 8) if "out" in name[:6] else 8, np.float32) for name in names})
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.tie_word_embeddings) == (True, True, True, False)


@pytest.mark.parametrize(
    "arch, name, norm", [("qwen2", "Qwen2ForCausalLM", False), ("qwen3", "Qwen3ForCausalLM", True)]
)
def test_qwen(tmp_path, arch, name, norm):
    config = read(tmp_path, arch, attention__key_length=32, attention__value_length=32, rope__freq_base=1e6)
    assert (config.architecture, config.qk_norm, config.head_dim, config.rope.theta) == (name, norm, 32, 1e6)


def test_one_value_a_layer_is_taken_if_it_is_the_same_everywhere(tmp_path):
    assert read(tmp_path, attention__head_count_kv=[2, 2]).num_kv_heads == 2
    refused(tmp_path, "head_count_kv", attention__head_count_kv=[2, 4])


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"arch": "gemma3"}, "'gemma3' is not supported. Supported: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3"),
        ({"expert_count": 8}, "mixtures of experts"),
        ({"attention__sliding_window": 128}, "sliding-window"),
        ({"rope__dimension_count": 8}, "part of each head"),
        ({"attention__value_length": 8}, "different lengths"),
        ({"attention__key_length": 15, "attention__value_length": 15}, "odd"),
        ({"block_count": None}, "block_count is missing"),
        ({"block_count": 2**31}, "block_count must be"),
        ({"attention__head_count": 0}, "head_count must be"),
        ({"attention__head_count_kv": 3}, "no multiple"),
        ({"embedding_length": "64"}, "embedding_length must be"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, "'longrope' is not supported"),
        ({"extra": {"split.count": 2}}, "split over several GGUF files"),
        ({"tensors": {"rope_freqs.weight": np.full(HEAD_DIM // 2, 3.0, np.float32) ** np.arange(8)}}, "rope_freqs"),
        ({"tensors": {"rope_freqs.weight": np.ones(3, np.float32)}}, "rope_freqs"),
        ({"tensors": {"rope_freqs.weight": np.full(8, np.nan, np.float32)}}, "rope_freqs"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path, changes, match):
    refused(tmp_path, match, **changes)


def test_a_window_no_shorter_than_the_model_changes_nothing(tmp_path):
    assert read(tmp_path, attention__sliding_window=512).max_position_embeddings == 512


def test_no_embeddings_is_an_error(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", decoder_metadata(), {"output_norm.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelLoadError, match=r"token_embd\.weight is missing"):
        read_gguf_config(GGUFFile(path), bos_token_id=None, eos_token_ids=())


def test_a_vocabulary_that_the_samplers_cannot_take_is_refused(tmp_path):
    def embeddings(rows):
        return {"token_embd.weight": np.zeros((rows, 1), np.float32)}

    assert read(tmp_path, tensors=embeddings(MAX_VOCAB)).vocab_size == MAX_VOCAB
    refused(tmp_path, "has 262145 tokens; more than 262144 are not supported", tensors=embeddings(MAX_VOCAB + 1))


def test_linear_and_yarn_scaling(tmp_path):
    linear = RopeConfig(type="linear", factor=4.0)
    assert read(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0).rope == linear
    assert read(tmp_path, rope__scaling__factor=4.0).rope == linear
    assert read(tmp_path, rope__scale_linear=4.0).rope == linear
    assert read(tmp_path, rope__scaling__type="linear", rope__scaling__factor=0.0).rope == RopeConfig()
    assert read(tmp_path, rope__scaling__type="none").rope == RopeConfig()
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128}
    expected = RopeConfig(type="yarn", factor=4.0, original_max_position_embeddings=128)
    assert read(tmp_path, **yarn).rope == expected
    scaled = read(tmp_path, **yarn, rope__scaling__attn_factor=0.5).rope
    assert scaled.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


def converters_factors(dim, theta, factor, original, low, high):
    """What llama.cpp's converter writes into rope_freqs.weight, element by element."""
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


@pytest.mark.parametrize("dim, theta", [(64, 500_000.0), (128, 500_000.0), (16, 10_000.0)])
@pytest.mark.parametrize("factor, original", [(8.0, 8192), (32.0, 8192), (4.0, 1000)])
def test_llama_3_scaling_is_found_behind_its_factors(tmp_path, dim, theta, factor, original):
    factors = converters_factors(dim, theta, factor, original, 1.0, 4.0)
    sizes = {"attention__key_length": dim, "attention__value_length": dim, "rope__freq_base": theta}
    rope = read(tmp_path, tensors={"rope_freqs.weight": factors}, **sizes).rope
    assert (rope.type, rope.factor, rope.theta) == ("llama3", factor, theta)
    assert rope.original_max_position_embeddings == pytest.approx(original, rel=1e-3)
    assert rope.low_freq_factor == 1.0
    assert rope.high_freq_factor == pytest.approx(4.0, rel=1e-3)


def test_other_llama_3_settings_give_the_same_frequencies(tmp_path):
    factors = converters_factors(128, 500_000.0, 16.0, 3000, 2.0, 5.0)
    sizes = {"attention__key_length": 128, "attention__value_length": 128, "rope__freq_base": 500_000.0}
    rope = read(tmp_path, tensors={"rope_freqs.weight": factors}, **sizes).rope
    found = (rope.factor, rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor)
    np.testing.assert_allclose(converters_factors(128, 500_000.0, *found), factors, rtol=1e-3)


def test_factors_of_one_are_no_scaling(tmp_path):
    assert read(tmp_path, tensors={"rope_freqs.weight": np.ones(8, np.float32)}).rope == RopeConfig()


def test_sampling_defaults(tmp_path):
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.top_p": 0.75}
    path = write_gguf(tmp_path / "m.gguf", metadata, {}, qtype=Q.F32)
    assert read_gguf_sampling(GGUFFile(path)) == GenerationDefaults(temperature=0.5, top_k=20, top_p=0.75)
    assert read_gguf_sampling(GGUFFile(write_gguf(tmp_path / "e.gguf", {}, {}))) == GenerationDefaults()
