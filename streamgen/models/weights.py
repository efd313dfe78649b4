from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from streamgen.errors import ModelLoadError
from streamgen.models.model import Model

_NAMED_AT_MOST = 5


class WeightSource(Protocol):
    """The part of a checkpoint that holds weights."""

    @property
    def num_tensors(self) -> int: ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class ReadAhead:
    """A WeightSource that reads the next tensors of another one on a thread of its own, while those before are used."""

    def __init__(self, source: WeightSource, depth: int = 2) -> None:
        self._source = source
        self._depth = depth

    @property
    def num_tensors(self) -> int:
        return self._source.num_tensors

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same tensors in the same order. What the other one raises is raised here."""
        tensors = self._source.tensors()
        with ThreadPoolExecutor(1, thread_name_prefix="streamgen-weights") as reader:
            waiting = deque(reader.submit(next, tensors, None) for _ in range(self._depth))
            try:
                while (item := waiting.popleft().result()) is not None:
                    waiting.append(reader.submit(next, tensors, None))
                    yield item
            finally:
                for future in waiting:
                    future.cancel()


def load_weights(model: Model, source: WeightSource, progress: Callable[[str, int, int], None] | None = None) -> None:
    """Fill the model from a checkpoint. Raises ModelLoadError that names what is missing, surplus or misshapen."""
    slots = model.weight_slots()
    shapes = {name: slot.shape for name, slot in slots.items()}
    for name, values in checked(_counted(source, progress), shapes, tied=model.config.tie_word_embeddings):
        slots[name].load(values)


def checked(
    tensors: Iterable[tuple[str, torch.Tensor]], shapes: Mapping[str, tuple[int, ...]], *, tied: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of the tensors that `shapes` has, each once and of its shape. Raises ModelLoadError for all else.

    A tensor of the wrong shape is an error in its turn, before it is yielded; what is missing or surplus, at the end.
    """
    missing = dict.fromkeys(shapes)
    surplus = []
    for name, values in tensors:
        shape = shapes.get(name)
        if shape is None:
            if not _ignorable(name, tied=tied):
                surplus.append(name)
            continue
        if name not in missing:
            raise ModelLoadError(f"The checkpoint has the tensor {name} twice.")
        if tuple(values.shape) != shape:
            raise ModelLoadError(f"The tensor {name} has shape {tuple(values.shape)}; the config says {shape}.")
        del missing[name]
        yield name, values
    if missing:
        raise ModelLoadError(f"The checkpoint lacks {_listed(list(missing))}.")
    if surplus:
        raise ModelLoadError(f"The model has no place for {_listed(surplus)}; its config says another shape.")


def _counted(
    source: WeightSource, progress: Callable[[str, int, int], None] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The source's tensors; each is reported when the next one is asked for."""
    total = source.num_tensors
    for done, tensor in enumerate(source.tensors(), 1):
        yield tensor
        if progress is not None:
            progress("Loading weights", done, total)


def draw_weights(model: Model, seed: int) -> None:
    """Random weights for a model without a checkpoint: normal with the deviation 0.02, norms at one."""
    generator = torch.Generator().manual_seed(seed)
    for name, slot in model.weight_slots().items():
        if name.endswith("norm.weight"):
            slot.load(torch.ones(slot.shape))
        else:
            slot.load(torch.empty(slot.shape).normal_(std=0.02, generator=generator))


def _ignorable(name: str, *, tied: bool) -> bool:
    """What old checkpoints carry although it follows from the config or from another tensor."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def _listed(names: list[str]) -> str:
    what = "the tensor" if len(names) == 1 else f"{len(names)} tensors:"
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return f"{what} {', '.join(sorted(names)[:_NAMED_AT_MOST])}{more}"
