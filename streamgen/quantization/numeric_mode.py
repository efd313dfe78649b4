from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from streamgen.quantization.dense import DenseMethod
from streamgen.quantization.linear_method import LinearMethod

ModeName = Literal["float32", "bfloat16", "float16"]

_ACTIVATION_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class NumericMode:
    """Formats of weights, activations and KV. Fixed for an engine: a result must not depend on what a step holds."""

    name: ModeName

    @property
    def activation_dtype(self) -> torch.dtype:
        """Of the residual stream, of norms, biases and KV."""
        return _ACTIVATION_DTYPES[self.name]

    def linear(self, out_features: int, in_features: int, *, bias: bool, device: torch.device) -> LinearMethod:
        """An empty matrix."""
        return DenseMethod(out_features, in_features, bias=bias, dtype=self.activation_dtype, device=device)
