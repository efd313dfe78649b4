"""generation_config.json: end tokens and sampling defaults."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from streamgen.errors import ConfigError
from streamgen.loader.json_file import Fields, read_json_object
from streamgen.models.config import GenerationDefaults

GENERATION_CONFIG = "generation_config.json"
FROM_MODEL = "auto"
NO_DEFAULTS = "vllm"

logger = logging.getLogger(__name__)

_NEUTRAL = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "typical_p": 1.0, "num_beams": 1}
"""Settings that change what is generated and are not applied here, with the value that means nothing."""


@dataclass(frozen=True)
class GenerationConfig:
    """`eos_token_ids` is empty, and `bos_token_id` None, where the file says nothing."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)


def read_generation_config(path: Path) -> GenerationConfig:
    """Raises ModelLoadError for a value that no request could have either. A warning names what is not applied.

    As in vLLM, `do_sample` is ignored: the sampling parameters stand for themselves, and a request may override them.
    """
    config = Fields(read_json_object(path), path)
    for name, neutral in _NEUTRAL.items():
        if config.values.get(name) not in (None, neutral):
            logger.warning("%s: %s=%r is not applied", path, name, config.values[name])
    bos = config.token_ids("bos_token_id")
    return GenerationConfig(
        eos_token_ids=config.token_ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        defaults=sampling_defaults(config, max_tokens="max_new_tokens"),
    )


def sampling_defaults(
    config: Fields,
    *,
    temperature: str = "temperature",
    top_p: str = "top_p",
    top_k: str = "top_k",
    min_p: str = "min_p",
    max_tokens: str = "max_tokens",
) -> GenerationDefaults:
    """The sampling parameters under the given keys; None where they are absent."""
    return GenerationDefaults(
        temperature=config.number(temperature, high=2.0) if config.has(temperature) else None,
        top_p=config.number(top_p, low=1e-9, high=1.0) if config.has(top_p) else None,
        top_k=config.integer(top_k, low=-1) if config.has(top_k) else None,
        min_p=config.number(min_p, high=1.0) if config.has(min_p) else None,
        max_tokens=config.integer(max_tokens) if config.has(max_tokens) else None,
    )


def resolve_generation(setting: str, own: GenerationConfig) -> GenerationConfig:
    """Apply `--generation-config` to what the model says of itself.

    End tokens are the model's own whatever the setting, unless another folder's file names some. Raises ConfigError
    if that folder has no such file.
    """
    if setting == FROM_MODEL:
        return own
    if setting == NO_DEFAULTS:
        return GenerationConfig(own.eos_token_ids, own.bos_token_id)
    path = Path(setting).expanduser()
    path = path / GENERATION_CONFIG if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"--generation-config must be {FROM_MODEL}, {NO_DEFAULTS} or a folder with {GENERATION_CONFIG}; "
            f"there is no {path}."
        )
    other = read_generation_config(path)
    bos = own.bos_token_id if other.bos_token_id is None else other.bos_token_id
    return GenerationConfig(other.eos_token_ids or own.eos_token_ids, bos, other.defaults)
