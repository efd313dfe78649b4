"""How far the 8-bit step's predictions are from float32's, on the default model: a line of figures.

    python benchmarks/int8_quality.py [--model MODEL] [FILE ...]

Text files, this project's README by default, are read in pieces of 256 tokens. For each token: whether the most likely
next token is the same, and the Kullback-Leibler divergence of the two distributions, in nats.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from streamgen.config import EngineConfig, ModelConfig
from streamgen.loader import open_checkpoint
from streamgen.runtime import build_runner
from streamgen.runtime.model_runner import ModelRunner
from streamgen.types import Admission, Row, RowSampling, StepPlan

PIECE = 256
GREEDY = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 0, ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("files", nargs="*", type=Path, default=[Path(__file__).parent.parent / "README.md"])
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(ModelConfig(model=arguments.model))
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    pieces = []
    for file in arguments.files:
        ids = tokenizer.encode(file.read_text())
        pieces += [ids[start : start + PIECE] for start in range(0, len(ids), PIECE)]
    exact, rounded = (_predictions(arguments.model, dtype, pieces) for dtype in ("float32", "int8"))
    same = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    wanted, got = exact.log_softmax(-1), rounded.log_softmax(-1)
    divergence = (wanted.exp() * (wanted - got)).sum(-1)
    print(
        f"{len(exact)} tokens: the same most likely token {same:.2%}, "
        f"divergence {divergence.mean():.4f} on average, {divergence.quantile(0.99):.4f} at the 99th percentile"
    )


def _predictions(model: str, dtype: str, pieces: list[list[int]]) -> torch.Tensor:
    """Logits [tokens, V] of every token of the pieces."""
    config = ModelConfig(model=model, dtype=dtype)
    checkpoint = open_checkpoint(config)
    runner = build_runner(EngineConfig(model=config), checkpoint)
    try:
        return torch.cat([_logits(runner, piece) for piece in pieces])
    finally:
        runner.close()


def _logits(runner: ModelRunner, ids: list[int]) -> torch.Tensor:
    """One piece as one row of one step, with the logits of all its tokens and not only the last one's."""
    seen: list[torch.Tensor] = []
    model = runner._model  # noqa: SLF001 - the runner has no use for all of a prompt's logits
    forward = model.forward

    def all_tokens(token_ids: torch.Tensor, context: object, wanted: torch.Tensor) -> torch.Tensor:
        hidden = forward(token_ids, context, torch.arange(len(token_ids)))  # type: ignore[arg-type]
        seen.append(model.logits(hidden).clone())
        return hidden[wanted]

    model.forward = all_tokens  # type: ignore[method-assign]
    try:
        blocks = tuple(range(1, 2 + len(ids) // 16))
        admission = Admission(0, 0, 0, tuple(ids), 0, blocks, GREEDY)
        runner.launch(StepPlan(0, True, (), (admission,), (Row(0, 0, 0, 0, len(ids), True),))).wait()
    finally:
        del model.forward
    return seen[0]


if __name__ == "__main__":
    main()
