"""How long a request may be, and how many KV blocks there are: plain arithmetic, done once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from streamgen.config import CacheConfig
from streamgen.errors import ConfigError
from streamgen.models.config import DecoderConfig

CPU_KV_BYTES = 512 * 2**20
NUM_PADDING_BLOCKS = 1


def trained_length(decoder: DecoderConfig) -> int:
    """Most tokens that the model's positions were made for, what rope scaling adds included."""
    rope = decoder.rope
    match rope.type:
        case "linear" | "dynamic":
            return max(decoder.max_position_embeddings, int(decoder.max_position_embeddings * rope.factor))
        case "yarn":
            original = rope.original_max_position_embeddings or decoder.max_position_embeddings
            return max(decoder.max_position_embeddings, int(original * rope.factor))
        case "default" | "llama3":
            return decoder.max_position_embeddings


def block_bytes(decoder: DecoderConfig, block_size: int, element_bytes: int, ranks: int = 1) -> int:
    """Memory of one block's keys and values in all layers of one rank."""
    return 2 * decoder.num_layers * block_size * decoder.num_kv_heads // ranks * decoder.head_dim * element_bytes


def num_blocks(cache: CacheConfig, bytes_a_block: int, free_bytes: int | None) -> int:
    """Blocks of the pool, the padding block included. `free_bytes` is what a GPU has left for it; None on a CPU."""
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override + NUM_PADDING_BLOCKS
    given = cache.kv_cache_memory_bytes
    if given is None:
        given = CPU_KV_BYTES if free_bytes is None else free_bytes
    blocks = max(given, 0) // bytes_a_block
    if blocks < 1 + NUM_PADDING_BLOCKS:
        flag = (
            "--kv-cache-memory-bytes" if free_bytes is None or cache.kv_cache_memory_bytes else "the GPU's free memory"
        )
        raise ConfigError(f"{flag} ({max(given, 0)}) does not hold two KV blocks of {bytes_a_block} bytes.")
    return blocks


@dataclass(frozen=True)
class ModelLength:
    tokens: int
    warning: str | None = None


def model_length(requested: int | None, trained: int, blocks: int, block_size: int) -> ModelLength:
    """Most tokens of one request. Raises ConfigError if the length asked for is beyond the model or the KV pool.

    One request of that length must always fit the pool, so the model's own length is clamped to what the pool holds.
    """
    fits = (blocks - NUM_PADDING_BLOCKS) * block_size
    if requested is not None:
        if requested < 1:
            raise ConfigError(f"--max-model-len must be at least 1; it was {requested}.")
        if requested > trained:
            raise ConfigError(
                f"--max-model-len {requested} is beyond the {trained} tokens that the model was made for."
            )
        if requested > fits:
            raise ConfigError(
                f"--max-model-len {requested} does not fit the KV pool, which holds {fits} tokens; "
                "raise --kv-cache-memory-bytes or lower --max-model-len."
            )
        return ModelLength(requested)
    if trained > fits:
        return ModelLength(
            fits,
            f"The KV pool holds {fits} tokens, so requests are limited to that instead of the model's {trained}. "
            "--kv-cache-memory-bytes makes it larger.",
        )
    return ModelLength(trained)
