"""Small GGUF files, written by the gguf package's own writer."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import tokenizers
from gguf import GGMLQuantizationType, GGUFWriter

Q = GGMLQuantizationType
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 16, 96


def decoder_metadata(arch: str = "llama", **changes: object) -> dict[str, object]:
    """Keys of a one-layer decoder; a change to None leaves the key out."""
    values: dict[str, object] = {
        "block_count": 1,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    values |= changes
    return {f"{arch}.{key}": value for key, value in values.items() if value is not None}


def decoder_weights(seed: int = 0, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """Random float32 weights of one layer, under GGUF's names and in Hugging Face's row order."""
    rng = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter leaves them: in a head, rows i and i + D/2 become rows 2i and 2i + 1."""
    out = np.empty_like(weight)
    dim = len(weight) // heads
    for head in range(heads):
        for i in range(dim // 2):
            out[head * dim + 2 * i] = weight[head * dim + i]
            out[head * dim + 2 * i + 1] = weight[head * dim + i + dim // 2]
    return out


def bfloat16_bytes(values: np.ndarray) -> np.ndarray:
    """Float32 cut to its upper half: exact only for values that fit."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def write_gguf(
    path: Path,
    metadata: dict[str, object],
    tensors: dict[str, object],
    *,
    arch: str = "llama",
    qtype: GGMLQuantizationType = Q.F32,
) -> Path:
    """`tensors` are float32 arrays, stored as `qtype` where their rows allow it, or (raw bytes by row, type) pairs."""
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=value[1])
        elif value.dtype != np.float32 or value.ndim == 1 or value.shape[-1] % gguf.GGML_QUANT_SIZES[qtype][0]:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quantize(value, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bpe_metadata(backend: tokenizers.Tokenizer, pre: str, *, padded_to: int | None = None) -> dict[str, object]:
    """A tokenizer of GPT-2's kind as converters write it: special tokens are control, other added ones user-defined."""
    state = json.loads(backend.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    texts = {token_id: text for text, token_id in backend.get_vocab().items()}
    size = padded_to or max(texts) + 1
    kinds = [5 if i not in texts else 1 if i not in added else 3 if added[i]["special"] else 4 for i in range(size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [texts.get(i, f"[PAD{i}]") for i in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }


def header(*, num_tensors: int = 0, num_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data
