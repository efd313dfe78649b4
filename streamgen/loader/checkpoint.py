"""A model's checkpoint, whatever it was read from: config and tokenizer at once, weights one by one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streamgen.config import ModelConfig
from streamgen.errors import ConfigError
from streamgen.loader import default_model
from streamgen.loader.chat_templates import chat_template_from_flag
from streamgen.loader.generation import GenerationConfig, resolve_generation
from streamgen.loader.gguf_config import read_gguf_config, read_gguf_sampling
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.gguf_tokenizer import has_gguf_tokenizer, load_gguf_tokenizer
from streamgen.loader.gguf_weights import GGUFWeights
from streamgen.loader.hf_folder import read_hf_folder
from streamgen.loader.location import gguf_in, locate_model, locate_tokenizer
from streamgen.loader.safetensors_files import SafetensorsWeights
from streamgen.loader.tokenizer import has_tokenizer, load_tokenizer
from streamgen.models.config import DecoderConfig, GenerationDefaults
from streamgen.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch  # opening a checkpoint needs config and tokenizer alone; torch comes with the first tensor

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

logger = logging.getLogger(__name__)


class Weights(Protocol):
    """Where tensors come from."""

    def __len__(self) -> int: ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    name: str
    """What the model is called: its hub id, or the name of its folder or file."""
    decoder: DecoderConfig
    generation: GenerationDefaults
    tokenizer: Tokenizer | None
    """None only for a dummy without one."""
    weights: Weights | None
    """None for a dummy."""

    @property
    def dummy(self) -> bool:
        """There are no weights; the model draws its own."""
        return self.weights is None

    @property
    def num_tensors(self) -> int:
        return 0 if self.weights is None else len(self.weights)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and value of each tensor, under Hugging Face's names, on the CPU.

        Floats keep the dtype and share the memory of the file; quantized ones become float32. Each is made when its
        turn comes, so a reader that lets go of one before the next holds one at a time. Raises ModelLoadError.
        """
        return iter(()) if self.weights is None else self.weights.tensors()

    def close(self) -> None:
        """Let go of the files. Tensors that still share their memory keep it."""
        if self.weights is not None:
            self.weights.close()


def open_checkpoint(config: ModelConfig, *, progress: Progress | None = None) -> Checkpoint:
    """Find the model, fetch it if need be, and read its config and tokenizer.

    What is missing, damaged or not supported is an error here, before any weight is read: ModelLoadError for the
    model's files, ConfigError for flags that do not fit them.
    """
    report = progress or _silent
    dummy = config.load_format == "dummy"
    report("Finding the model", 0, 2)
    location = locate_model(config.model, weights=not dummy)
    path = location.path
    gguf = path if path.suffix == ".gguf" and path.is_file() else gguf_in(path) if path.is_dir() else None
    if config.load_format == "gguf" and gguf is None:
        raise ConfigError(f"--load-format gguf, but {path} is no GGUF file.")
    if config.load_format == "safetensors" and gguf is not None:
        raise ConfigError(f"--load-format safetensors, but {gguf} is a GGUF file.")
    if gguf is None and path.is_file() and not dummy:
        raise ConfigError(f"{path} is a config without weights, enough for --load-format dummy; name its folder.")

    report("Reading the tokenizer", 1, 2)
    if gguf is not None:
        checkpoint = _open_gguf(gguf, location.name, config, dummy=dummy)
    else:
        checkpoint = _open_folder(path if path.is_dir() else path.parent, location.name, config, dummy=dummy)
    report("Reading the tokenizer", 2, 2)
    return checkpoint


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


def _open_gguf(path: Path, name: str, config: ModelConfig, *, dummy: bool) -> Checkpoint:
    file = GGUFFile(path)
    # The metadata names the end tokens, so the tokenizer that the file carries is read even if another one is used.
    own = load_gguf_tokenizer(file) if config.tokenizer is None or has_gguf_tokenizer(file) else None
    ends = own.eos_token_ids if own else ()
    decoder = read_gguf_config(file, bos_token_id=own.bos_token_id if own else None, eos_token_ids=ends)
    weights = None if dummy else GGUFWeights(file, decoder)
    if weights is None:
        file.close()
    sampling = read_gguf_sampling(file) if config.model else default_model.SAMPLING
    generation = GenerationConfig(ends, decoder.bos_token_id, sampling)
    tokenizer = own if config.tokenizer is None else load_tokenizer(locate_tokenizer(config.tokenizer))
    return _checkpoint(name, decoder, generation, tokenizer, weights, config)


def _open_folder(folder: Path, name: str, config: ModelConfig, *, dummy: bool) -> Checkpoint:
    decoder, generation = read_hf_folder(folder)
    weights = None if dummy else SafetensorsWeights(folder)
    tokenizer = None
    if config.tokenizer is not None:
        tokenizer = load_tokenizer(locate_tokenizer(config.tokenizer))
    elif not dummy or has_tokenizer(folder):
        tokenizer = load_tokenizer(folder)
    return _checkpoint(name, decoder, generation, tokenizer, weights, config)


def _checkpoint(
    name: str,
    decoder: DecoderConfig,
    own: GenerationConfig,
    tokenizer: Tokenizer | None,
    weights: Weights | None,
    config: ModelConfig,
) -> Checkpoint:
    generation = resolve_generation(config.generation_config, own)
    ends = generation.eos_token_ids
    if tokenizer is not None:
        # The tokenizer's end token ends a generation too, as in vLLM: configs of chat models often forget it.
        ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *ends)))
        tokenizer.eos_token_ids = ends
        if config.chat_template is not None:
            tokenizer.chat_template = chat_template_from_flag(config.chat_template)
        if tokenizer.vocab_size > decoder.vocab_size:
            logger.warning(
                "%s: the tokenizer has %d tokens, but the model only %d; it cannot be sent the others",
                name,
                tokenizer.vocab_size,
                decoder.vocab_size,
            )
    return Checkpoint(
        name=name,
        decoder=dataclasses.replace(decoder, bos_token_id=generation.bos_token_id, eos_token_ids=ends),
        generation=generation.defaults,
        tokenizer=tokenizer,
        weights=weights,
    )
