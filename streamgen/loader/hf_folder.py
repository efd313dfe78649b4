"""A Hugging Face folder's config: config.json and generation_config.json together."""

from __future__ import annotations

from pathlib import Path

from streamgen.errors import ModelLoadError
from streamgen.loader.generation import GENERATION_CONFIG, GenerationConfig, read_generation_config
from streamgen.loader.hf_config import read_hf_config
from streamgen.models.config import DecoderConfig

CONFIG = "config.json"


def read_hf_folder(folder: Path) -> tuple[DecoderConfig, GenerationConfig]:
    """End tokens and BOS come from generation_config.json, or from config.json where that says nothing.

    Raises ModelLoadError for a file that is missing or wrong.
    """
    if not (folder / CONFIG).is_file():
        raise ModelLoadError(f"{folder} has no {CONFIG}; it is not the folder of a model.")
    decoder = read_hf_config(folder / CONFIG)
    generation = GenerationConfig()
    if (folder / GENERATION_CONFIG).is_file():
        generation = read_generation_config(folder / GENERATION_CONFIG)
    bos = decoder.bos_token_id if generation.bos_token_id is None else generation.bos_token_id
    return decoder, GenerationConfig(generation.eos_token_ids or decoder.eos_token_ids, bos, generation.defaults)
