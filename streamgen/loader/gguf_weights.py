"""The weights in a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gguf.constants import GGMLQuantizationType

from streamgen.errors import ModelLoadError
from streamgen.loader.gguf_dequantize import SUPPORTED_TYPES, to_numpy
from streamgen.loader.gguf_file import GGUFFile, GGUFTensor
from streamgen.loader.gguf_tensor_names import IN_CONFIG, huggingface_name, restore_row_order
from streamgen.models.config import DecoderConfig

if TYPE_CHECKING:
    import torch


class GGUFWeights:
    """The tensors of a GGUF file under Hugging Face's names, in the file's order.

    Raises ModelLoadError when made, not when read, if a tensor has an unknown name or an unsupported type.
    """

    def __init__(self, file: GGUFFile, decoder: DecoderConfig) -> None:
        self._file: GGUFFile | None = file
        self._tensors: list[tuple[str, GGUFTensor]] = []
        self._heads: dict[str, int] = {}
        for tensor in file.tensors.values():
            if tensor.name in IN_CONFIG:
                continue
            name = huggingface_name(tensor.name, file.path)
            _check_type(tensor, file.path)
            self._tensors.append((name, tensor))
            if decoder.architecture == "LlamaForCausalLM":
                for part, heads in (("q_proj", decoder.num_heads), ("k_proj", decoder.num_kv_heads)):
                    if f".{part}." in name:
                        self._heads[name] = heads
                        rows = tensor.shape[0]
                        if rows != heads * decoder.head_dim:
                            raise ModelLoadError(
                                f"{file.path}: tensor {tensor.name} has {rows} rows, "
                                f"not {heads} heads of {decoder.head_dim}."
                            )

    def __len__(self) -> int:
        return len(self._tensors)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        for name, tensor in self._tensors:
            assert self._file is not None, "the checkpoint was closed"
            data = self._file.data(tensor)
            if name in self._heads:
                # A bias is one row of the file, but its elements are what the rows of a weight are.
                by_row = data.reshape(tensor.shape[0], -1)
                data = restore_row_order(by_row, self._heads[name]).reshape(data.shape)
            value = torch.from_numpy(to_numpy(data, tensor.shape, tensor.type))
            yield name, value.view(torch.bfloat16) if tensor.type == GGMLQuantizationType.BF16 else value

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _check_type(tensor: GGUFTensor, path: Path) -> None:
    if tensor.type not in SUPPORTED_TYPES:
        names = ", ".join(kind.name for kind in SUPPORTED_TYPES)
        raise ModelLoadError(
            f"{path}: tensor {tensor.name} is of GGUF type {tensor.type.name}, which is not supported. "
            f"Supported types: {names}."
        )
