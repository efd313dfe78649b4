"""In float32, greedy output equals transformers' token for token, for tiny random models of every shape."""

from __future__ import annotations

import pytest

from tests.models.driver import generate
from tests.models.tiny import (
    BLOCK_SIZE,
    CASES,
    expected,
    prompts,
    runner,
    shorter_context,
    swap_heads,
    wrong_rope,
)

TOKENS = 40
"""Long enough for the longest prompt to pass the 64 positions that "dynamic" rope was made for."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {case: tmp_path_factory.mktemp(case) for case in CASES}


@pytest.fixture(scope="module")
def truth():
    return {case: expected(case, TOKENS) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_equals_transformers(case, folders, truth):
    made = generate(runner(case, folders[case]), prompts(), TOKENS, block_size=BLOCK_SIZE)
    assert made == truth[case]
    assert len({tuple(tokens) for tokens in made}) > 1, "a model that says the same to all proves nothing"


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 29])
@pytest.mark.parametrize("case", ["llama", "qwen3", "dynamic"])
def test_chunks_of_any_size_give_the_same(case, chunk, folders, truth):
    assert generate(runner(case, folders[case]), prompts(), TOKENS, block_size=BLOCK_SIZE, chunk=chunk) == truth[case]


def test_one_request_after_another_gives_the_same(folders, truth):
    alone = generate(runner("llama", folders["llama"]), prompts(), TOKENS, block_size=BLOCK_SIZE, one_at_a_time=True)
    assert alone == truth["llama"]


MUTANTS = {
    "wrong_rope": {"change_config": wrong_rope},
    "swapped_heads": {"change_model": swap_heads},
    "length_off_by_one": {"change_operators": shorter_context},
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("case", CASES)
def test_a_mutant_is_caught(case, mutant, folders, truth):
    made = generate(runner(case, folders[case], **MUTANTS[mutant]), prompts(), TOKENS, block_size=BLOCK_SIZE)
    assert made != truth[case]
