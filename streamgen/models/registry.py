from __future__ import annotations

import torch

from streamgen.errors import ModelLoadError
from streamgen.models.config import DecoderConfig
from streamgen.models.decoder import Decoder
from streamgen.models.llama import LLAMA
from streamgen.models.qwen2 import QWEN2
from streamgen.models.qwen3 import QWEN3
from streamgen.parallel.group import SINGLE, ParallelGroup
from streamgen.quantization.numeric_mode import NumericMode
from streamgen_kernels.operators import Operators

ARCHITECTURES = {architecture.name: architecture for architecture in (LLAMA, QWEN2, QWEN3)}


def build_model(
    decoder: DecoderConfig,
    *,
    operators: Operators,
    mode: NumericMode,
    device: torch.device,
    max_model_len: int | None = None,
    group: ParallelGroup = SINGLE,
) -> Decoder:
    """A model without weights. Raises ModelLoadError for an architecture that is not known or contradicts itself."""
    check_architecture(decoder)
    return Decoder(
        decoder,
        operators=operators,
        mode=mode,
        device=device,
        max_model_len=max_model_len or decoder.max_position_embeddings,
        group=group,
    )


def check_architecture(decoder: DecoderConfig) -> None:
    """Raise ModelLoadError for an architecture that is not known or contradicts itself."""
    architecture = ARCHITECTURES.get(decoder.architecture)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(f"The architecture {decoder.architecture!r} is not supported. Supported: {known}.")
    field = architecture.contradiction(decoder)
    if field is not None:
        value = getattr(decoder, field)
        raise ModelLoadError(f"A {decoder.architecture} cannot have {field} = {value}; the config contradicts itself.")
