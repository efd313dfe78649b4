from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed

from streamgen.errors import ConfigError


@dataclass(frozen=True)
class ParallelGroup:
    """Ranks that share each layer's work. The group of one needs no communication, and no torch.distributed."""

    rank: int = 0
    size: int = 1
    process_group: torch.distributed.ProcessGroup | None = None

    def shard(self, total: int, what: str) -> slice:
        """This rank's part of `total` rows or columns. Raises ConfigError where they do not divide."""
        if total % self.size:
            raise ConfigError(f"{what} ({total}) cannot be divided among {self.size} ranks.")
        part = total // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(x, group=self.process_group)
        return x


SINGLE = ParallelGroup()
