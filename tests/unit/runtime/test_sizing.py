import pytest

from streamgen.config import CacheConfig
from streamgen.errors import ConfigError
from streamgen.models.config import DecoderConfig, RopeConfig
from streamgen.runtime.sizing import CPU_KV_BYTES, block_bytes, model_length, num_blocks, trained_length

PLAIN = RopeConfig()


def decoder(rope=PLAIN, length=1000):
    return DecoderConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=64,
        intermediate_size=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        rope=rope,
    )


@pytest.mark.parametrize(
    "rope, length",
    [
        (RopeConfig(), 1000),
        (RopeConfig(type="linear", factor=4.0), 4000),
        (RopeConfig(type="dynamic", factor=2.5), 2500),
        (RopeConfig(type="llama3", factor=8.0, original_max_position_embeddings=125), 1000),
        (RopeConfig(type="yarn", factor=4.0, original_max_position_embeddings=1000), 4000),
        (RopeConfig(type="yarn", factor=4.0, original_max_position_embeddings=250), 1000),
    ],
)
def test_rope_scaling_counts_towards_the_length(rope, length):
    assert trained_length(decoder(rope)) == length


def test_a_block_holds_keys_and_values_of_every_layer():
    assert block_bytes(decoder(), 8, 4) == 2 * 3 * 8 * 2 * 16 * 4


def test_the_pool_is_sized_by_override_then_bytes_then_the_device():
    assert num_blocks(CacheConfig(num_gpu_blocks_override=8, kv_cache_memory_bytes=10**9), 1000, None) == 9
    assert num_blocks(CacheConfig(kv_cache_memory_bytes=10_999), 1000, 10**9) == 10
    assert num_blocks(CacheConfig(), 1000, 5000) == 5
    assert num_blocks(CacheConfig(), 2**20, None) == CPU_KV_BYTES // 2**20


@pytest.mark.parametrize("free", [None, -5, 0, 1999])
def test_a_pool_of_less_than_two_blocks_is_refused(free):
    cache = CacheConfig(kv_cache_memory_bytes=1999) if free is None else CacheConfig()
    with pytest.raises(ConfigError, match="two KV blocks"):
        num_blocks(cache, 1000, free)


def test_the_length_is_the_models_where_the_pool_holds_it():
    assert model_length(None, 320, blocks=21, block_size=16).tokens == 320
    assert model_length(None, 320, blocks=21, block_size=16).warning is None


def test_the_length_is_clamped_with_a_warning_if_nobody_asked_for_it():
    clamped = model_length(None, 321, blocks=21, block_size=16)
    assert clamped.tokens == 320
    assert "321" in clamped.warning


@pytest.mark.parametrize(
    "requested, trained, says", [(321, 1000, "KV pool"), (200, 100, "100"), (0, 100, "at least 1")]
)
def test_a_length_that_was_asked_for_and_cannot_be_is_refused(requested, trained, says):
    with pytest.raises(ConfigError, match=says):
        model_length(requested, trained, blocks=21, block_size=16)
