from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.models.config import DecoderConfig


@dataclass(frozen=True)
class Architecture:
    """What one of Hugging Face's classes is, in terms of the shared decoder."""

    name: str
    """The class's name in a config's `architectures`."""
    fixed: Mapping[str, bool] = field(default_factory=dict)
    """Fields of DecoderConfig that are the class's nature, whatever a config says."""

    def contradiction(self, config: DecoderConfig) -> str | None:
        """The first field in which the config is no such model, or None."""
        return next((name for name, value in self.fixed.items() if getattr(config, name) != value), None)
