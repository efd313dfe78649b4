"""The default model on this machine's CPU: streamgen beside transformers (float32) and llama.cpp, as a Markdown table.

    python benchmarks/cpu_vs_peers.py [--threads 2] [--repeats 5]

Each contender runs alone in a process of its own, greedily, over the same token ids: 128 in, 128 out. The median of
the repeats counts; streamgen's one stream and eight streams take turns, so that a slow moment of the machine hits both.
"decode" leaves the prompt out: it is the second to the last token over their time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

TOKENS_IN = TOKENS_OUT = 128
STREAMS = 8
TEXT = "A server that streams its answers must be quick to begin and steady to go on. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps(CONTENDERS[arguments.contender](arguments.threads, arguments.repeats)))
        return
    load = os.getloadavg()[0]
    rows: dict[str, dict[str, float]] = {}
    for name in CONTENDERS:
        if name == "llama.cpp" and importlib.util.find_spec("llama_cpp") is None:
            print("llama-cpp-python is not installed; llama.cpp is left out.", file=sys.stderr)
            continue
        rows.update(_in_own_process(name, arguments.threads, arguments.repeats))
    _print_table(rows, load)


def _in_own_process(contender: str, threads: int, repeats: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--contender", contender, "--threads", str(threads), "--repeats", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    measured: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _streamgen(threads: int, repeats: int) -> dict[str, dict[str, float]]:
    from streamgen.llm import LLM
    from streamgen.types import SamplingParams

    started = time.perf_counter()
    with LLM(enable_prefix_caching=False) as llm:
        loaded = time.perf_counter() - started
        import torch

        torch.set_num_threads(threads)
        prompt = _prompt(llm.tokenizer.encode)

        def run(streams: int, tokens: int) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            outputs = llm.generate([prompt] * streams, params)
            assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)

        one, many = _measure({1: lambda n: run(1, n), STREAMS: lambda n: run(STREAMS, n)}, repeats)
        return {"streamgen, 1 stream": {**one, "load": loaded}, f"streamgen, {STREAMS} streams": many}


def _transformers(threads: int, repeats: int) -> dict[str, dict[str, float]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from streamgen.config import ModelConfig
    from streamgen.loader import open_checkpoint

    torch.set_num_threads(threads)
    checkpoint = open_checkpoint(ModelConfig())
    shape = checkpoint.decoder
    assert checkpoint.tokenizer is not None
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.max_position_embeddings,
            rms_norm_eps=shape.rms_norm_eps,
            tie_word_embeddings=shape.tie_word_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope.theta},
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    # The tied head is not in the checkpoint.
    model.load_state_dict({name: tensor.float() for name, tensor in checkpoint.tensors()}, strict=False)
    ids = torch.tensor([_prompt(checkpoint.tokenizer.encode)])

    def run(tokens: int) -> None:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        assert out.shape[1] == TOKENS_IN + tokens

    return {"transformers generate, float32": _measure({1: run}, repeats)[0]}


def _llama_cpp(threads: int, repeats: int) -> dict[str, dict[str, float]]:
    from llama_cpp import Llama

    from streamgen.loader.default_model import fetch

    model = Llama(str(fetch()), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    prompt = _prompt(lambda text: model.tokenize(text.encode(), add_bos=False))

    def run(tokens: int) -> None:
        # Else the prompt would be found in the context of the repeat before.
        model.reset()
        for count, _ in enumerate(model.generate(prompt, temp=0.0, reset=True), 1):
            if count == tokens:
                return

    return {"llama.cpp, Q4_1": _measure({1: run}, repeats)[0]}


CONTENDERS: dict[str, Callable[[int, int], dict[str, dict[str, float]]]] = {
    "transformers": _transformers,
    "llama.cpp": _llama_cpp,
    "streamgen": _streamgen,
}


def _prompt(encode: Callable[[str], Any]) -> list[int]:
    ids: list[int] = list(encode(TEXT * TOKENS_IN))[:TOKENS_IN]
    assert len(ids) == TOKENS_IN
    return ids


def _measure(runs: dict[int, Callable[[int], None]], repeats: int) -> list[dict[str, float]]:
    """For each number of streams, and what runs them for so many tokens: rates in tokens a second of all together.

    Memory in MiB, of the process up to now.
    """
    first: dict[int, list[float]] = {streams: [] for streams in runs}
    whole: dict[int, list[float]] = {streams: [] for streams in runs}
    for run in runs.values():
        run(4)
    for _ in range(repeats):
        for streams, run in runs.items():
            first[streams].append(_timed(run, 1))
            whole[streams].append(_timed(run, TOKENS_OUT))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = []
    for streams in runs:
        prefill, total = median(first[streams]), median(whole[streams])
        measured.append(
            {
                "first": prefill,
                "rate": streams * TOKENS_OUT / total,
                "decode": streams * (TOKENS_OUT - 1) / (total - prefill),
                "memory": memory,
            }
        )
    return measured


def _timed(run: Callable[[int], None], tokens: int) -> float:
    started = time.perf_counter()
    run(tokens)
    return time.perf_counter() - started


def _print_table(rows: dict[str, dict[str, float]], load: float) -> None:
    one = rows["streamgen, 1 stream"]
    print(f"{TOKENS_IN} tokens in, {TOKENS_OUT} out, greedy; load average at the start {load:.1f}\n")
    print("| | tok/s | decode tok/s | first token, ms | peak MiB | one stream of streamgen against it |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(
            f"| {name} | {row['rate']:.1f} | {row['decode']:.1f} | {row['first'] * 1e3:.0f} | {row['memory']:.0f} "
            f"| {one['rate'] / row['rate']:.2f} times |"
        )
    many = rows[f"streamgen, {STREAMS} streams"]
    ratio = many["rate"] / one["rate"]
    print(f"\n{STREAMS} streams together: {ratio:.2f} times one stream. Loaded in {one['load']:.1f} s.")


if __name__ == "__main__":
    main()
