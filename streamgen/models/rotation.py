"""Rotate what weights are multiplied with, so that no channel stands out where activations are rounded to 8 bits.

A few channels of a language model's residual stream are many times larger than the rest, and an integer scale that
fits them leaves little for the others. With an orthogonal matrix R, a model whose embedding writes x·R and whose
projections read x·R is the same model, as long as the norms between have no weights of their own: those are folded
into the projections behind them first (Ashkboos et al., "QuaRot", 2024). R spreads each channel over many. All of it
happens to the weights as they are loaded; a step costs nothing more.

What goes into the MLP's last projection is a product of two activations, which no weight before it can turn. The step
does it, by a Hadamard matrix for each block of channels, and the weight is turned alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from streamgen.models.config import DecoderConfig
from streamgen.models.decoder import Decoder
from streamgen.models.weights import WeightSource, checked
from streamgen.quantization.numeric_mode import NumericMode
from streamgen_kernels.operators import get_operators

_EMBEDDING, _HEAD, _LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_READERS = {
    "input_layernorm.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "post_attention_layernorm.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
_NORM_OF = {reader: norm for norm, readers in _READERS.items() for reader in readers}
_WRITERS = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.down_proj.weight", "mlp.down_proj.bias")
_TURNED = "mlp.down_proj.weight"
_LARGEST_BLOCK = 1024
"""Beyond that the transform takes longer than it is worth."""


def rotated_config(config: DecoderConfig) -> DecoderConfig:
    """The head takes the last norm's weights in and the embedding does not, so they are no longer one matrix."""
    return replace(config, tie_word_embeddings=False)


def turn_block(size: int) -> int:
    """Channels that are turned together: the largest power of two that divides their number."""
    return min(size & -size, _LARGEST_BLOCK)


def turn(x: Tensor) -> Tensor:
    """Turn each block of x [..., size] by its Hadamard matrix, in float32."""
    block = turn_block(x.shape[-1])
    return (x.to(torch.float32).reshape(-1, block) @ _hadamard(block)).reshape(x.shape)


def _hadamard(size: int) -> Tensor:
    """Sylvester's matrix, orthogonal: [size, size] for a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.div_(size**0.5)


@dataclass(frozen=True)
class Rotation:
    """An orthogonal matrix [size, size] that is cheap to apply: H ⊗ Q, with H a Hadamard matrix of a power of two."""

    size: int

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """(Q [rest, rest], H [power, power]): the size is rest · power, as square as a power of two allows."""
        power = self.size & -self.size
        rest = self.size // power
        # The discrete Hartley transform: orthogonal, of any size, with no entry larger than its share.
        angle = torch.arange(rest).outer(torch.arange(rest)).remainder(rest) * (2 * torch.pi / rest)
        return (angle.cos() + angle.sin()) / rest**0.5, _hadamard(power)

    def apply(self, x: Tensor) -> Tensor:
        """Multiply the last dimension: x · R, in float32, for x [..., size]."""
        outer, hadamard = self.factors
        parts = x.to(torch.float32).reshape(-1, outer.shape[0], hadamard.shape[0])
        return (outer.t() @ (parts @ hadamard)).reshape(x.shape)


class RotatedWeights:
    """A WeightSource that turns another one's weights into the rotated model's, name by name, without folded norms.

    What must wait for a norm's weights is held until they come; checkpoints keep a layer's tensors together, so that
    is a layer's worth at most, and the embedding.

    The weights are checked as the plain model would check them, before they are turned: later, folded norms could not
    be missed, and shapes only by errors of torch's. What the plain model ignores is left out.
    """

    def __init__(self, source: WeightSource, config: DecoderConfig) -> None:
        self._source = source
        self._tied = config.tie_word_embeddings
        self._rotation = Rotation(config.hidden_size)
        self._shapes = _plain_shapes(config)

    @property
    def num_tensors(self) -> int:
        return sum(not self._is_norm(name) for name in self._shapes) + int(self._tied)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Raises ModelLoadError as `checked` does, with the plain model's names and shapes."""
        norms: dict[str, Tensor] = {}
        waiting: dict[str, list[tuple[str, Tensor]]] = defaultdict(list)
        for name, values in checked(self._source.tensors(), self._shapes, tied=self._tied):
            norm = self._norm_before(name)
            if norm is not None:
                if norm in norms:
                    yield name, self._read(values, norms[norm])
                else:
                    waiting[norm].append((name, values))
            elif self._is_norm(name):
                norms[name] = values
                for reader, held in waiting.pop(name, ()):
                    yield reader, self._read(held, values)
            elif name == _EMBEDDING:
                yield name, self._rotation.apply(values)
                if self._tied and _LAST_NORM in norms:
                    yield _HEAD, self._read(values, norms[_LAST_NORM])
                elif self._tied:
                    waiting[_LAST_NORM].append((_HEAD, values))
            elif name.endswith(_WRITERS):
                turned = self._rotation.apply(values.t()).t()
                yield name, turn(turned) if name.endswith(_TURNED) else turned
            else:
                yield name, values
        assert not waiting

    def _read(self, weight: Tensor, norm: Tensor) -> Tensor:
        return self._rotation.apply(weight.to(torch.float32) * norm.to(torch.float32))

    def _norm_before(self, name: str) -> str | None:
        """The norm whose output a weight multiplies; None for all that reads no normed residual stream."""
        if name == _HEAD:
            return _LAST_NORM
        layer, reader = _layer_and_rest(name)
        return layer + _NORM_OF[reader] if reader in _NORM_OF else None

    @staticmethod
    def _is_norm(name: str) -> bool:
        return name == _LAST_NORM or _layer_and_rest(name)[1] in _READERS


def _plain_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """What a checkpoint must hold: the names and shapes of the model that is not rotated, made without memory."""
    operators, mode = get_operators("cpu"), NumericMode("float32")
    model = Decoder(config, operators=operators, mode=mode, device=torch.device("meta"), max_model_len=1)
    return {name: slot.shape for name, slot in model.weight_slots().items()}


def _layer_and_rest(name: str) -> tuple[str, str]:
    """The name "model.layers.3.mlp.up_proj.weight" → ("model.layers.3.", "mlp.up_proj.weight")."""
    parts = name.split(".", 3)
    return (".".join(parts[:3]) + ".", parts[3]) if len(parts) == 4 else ("", name)
