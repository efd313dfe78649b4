"""Tensor names of GGUF → those of Hugging Face, and the row order that llama.cpp changes on the way."""

from __future__ import annotations

import re

import numpy as np

from streamgen.errors import ModelLoadError
from streamgen.loader.gguf_file import ByteArray

_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,4})\.(\w+)\.(weight|bias)")

IN_CONFIG = frozenset({"rope_freqs.weight"})
"""Tensors that are settings in another form: the config has them already."""


def huggingface_name(name: str, source: object) -> str:
    """Raises ModelLoadError for a tensor that no supported architecture has."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = _LAYER.fullmatch(name)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    raise ModelLoadError(f"{source}: the tensor {name!r} belongs to none of the supported architectures.")


def restore_row_order(data: ByteArray, num_heads: int) -> ByteArray:
    """Undo llama.cpp's order of the rows of q or k, [rows, bytes of a row], as a copy.

    Its llama architecture rotates neighbouring pairs where Hugging Face rotates halves, so its converter interleaves
    the two halves of each head. Rows are whole blocks, so this is done before they are dequantized.
    """
    rows = data.shape[0]
    paired = data.reshape(num_heads, rows // num_heads // 2, 2, data.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(data.shape)
