from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LinearMethod(Protocol):
    """A matrix [out_features, in_features] in some format: how it is created, loaded in shards, and applied.

    One instance holds one matrix. A tied embedding is the same instance as the output head.
    """

    def load(self, start: int, values: Tensor) -> None:
        """Take rows `start` to `start + len(values)` from values [rows, in_features], of any float dtype."""

    def load_bias(self, start: int, values: Tensor) -> None:
        """The same for the bias; rows that are never loaded keep a bias of zero."""

    def apply(self, x: Tensor) -> Tensor:
        """The product x @ weight.T + bias: x [T, in_features] to [T, out_features], both in the activation dtype."""

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T] of the matrix, in the activation dtype: [T, in_features]."""

    @property
    def num_bytes(self) -> int:
        """Memory that the matrix takes."""
