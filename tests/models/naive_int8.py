"""The 8-bit decoder as plain numpy in double precision, with the same roundings: the truth for the compiled one."""

from __future__ import annotations

import numpy as np

from streamgen.models.int8_decoder import Int8Decoder


def logits(model: Int8Decoder, ids: list[int]) -> np.ndarray:
    """Of one sequence, from its beginning: [tokens, V]."""
    config, weights = model.config, model._weights
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    table = weights.cos_sin[: len(ids)].astype(float)

    def normed(x, weight=1.0):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * weight

    def product(x, matrix, layer, rows):
        """Of x rounded to bytes and the matrix that the model really holds, taken out of its panels."""
        step = np.abs(x).max(-1, keepdims=True) / 127
        panels = matrix.panels[layer]
        w = panels.transpose(0, 2, 1, 3).reshape(panels.shape[0] * panels.shape[2], -1)[:rows]
        return np.rint(x / step) @ w.T.astype(float) * step * matrix.scale[layer, :rows] + matrix.bias[layer, :rows]

    def rotated(x):
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.split(table[:, None], 2, axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)

    def half(x):
        return x.astype(np.float16).astype(float).repeat(heads // kv_heads, axis=1)

    def attend(qkv, layer):
        q, k, v = np.split(qkv.reshape(len(ids), -1, size), [heads, heads + kv_heads], axis=1)
        if config.qk_norm:
            q, k = normed(q, weights.q_norm[layer]), normed(k, weights.k_norm[layer])
        scores = np.einsum("ihd,jhd->hij", rotated(q), half(rotated(k))) / np.sqrt(size)
        scores[:, np.triu(np.ones((len(ids), len(ids)), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), half(v)).reshape(len(ids), -1)

    def turned(x):
        block = model._decoder.shape.turn_block
        matrix = np.ones((1, 1))
        while len(matrix) < block:
            matrix = np.kron([[1, 1], [1, -1]], matrix)
        return (x.reshape(len(ids), -1, block) @ matrix / np.sqrt(block)).reshape(x.shape)

    inner, hidden = config.intermediate_size, config.hidden_size
    x = weights.embedding[ids].astype(float) * weights.embedding_scale[ids][:, None]
    for layer in range(config.num_layers):
        qkv = product(normed(x), weights.qkv, layer, (heads + 2 * kv_heads) * size)
        x = x + product(attend(qkv, layer), weights.o, layer, hidden)
        gate, up = np.split(product(normed(x), weights.gate_up, layer, 2 * inner), 2, axis=-1)
        x = x + product(turned(gate / (1 + np.exp(-gate)) * up), weights.down, layer, hidden)
    return product(normed(x), model._head, 0, config.vocab_size)
