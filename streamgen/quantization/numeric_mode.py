from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from streamgen.quantization.dense import DenseMethod
from streamgen.quantization.int8 import Int8Method
from streamgen.quantization.linear_method import LinearMethod

ModeName = Literal["float32", "bfloat16", "float16", "int8"]

_ACTIVATION_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}


@dataclass(frozen=True)
class NumericMode:
    """Formats of weights, activations and KV. Fixed for an engine: a result must not depend on what a step holds."""

    name: ModeName

    @property
    def activation_dtype(self) -> torch.dtype:
        """Of the residual stream, of norms, biases and KV."""
        return _ACTIVATION_DTYPES[self.name]

    @property
    def rotates(self) -> bool:
        """Whether the mode wants the residual stream rotated (see `models/rotation.py`)."""
        return self.name == "int8"

    def linear(
        self,
        out_features: int,
        in_features: int,
        *,
        bias: bool,
        device: torch.device,
        heavy_tailed: bool = False,
        has_lookup: bool = False,
    ) -> LinearMethod:
        """An empty matrix.

        Args:
        heavy_tailed: a few of its inputs may be many times larger than the rest.
        has_lookup: its rows are looked up, whether or not it is multiplied with as well.
        """
        if self.name == "int8":
            assert device.type == "cpu", "refused when the dtype was resolved"
            return Int8Method(out_features, in_features, bias=bias, heavy_tailed=heavy_tailed, has_lookup=has_lookup)
        return DenseMethod(out_features, in_features, bias=bias, dtype=self.activation_dtype, device=device)
