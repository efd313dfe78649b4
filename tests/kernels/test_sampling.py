import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from streamgen_kernels import reference
from streamgen_kernels.reference.random import gumbel, row_words
from tests.kernels.sampling_cases import (
    BACKENDS,
    Row,
    Rules,
    choose,
    kept_by_hand,
    sampler_by_hand,
    tensors,
)
from tests.kernels.support import DEVICE, backend, draws, normal

INF, NAN = math.inf, math.nan


def logs(*probabilities):
    return tuple(math.log(p) for p in probabilities)


FLAT = (0.0,) * 6
NINES = logs(0.99, *(0.01 / 5,) * 5)
STAIRS = logs(0.4, 0.3, 0.15, 0.1, 0.05)

# For each: logits, and the parameters whose kept set is asked for.
KEPT_SETS = {
    "top_k=1 and top_p=.8": (logs(0.5, 0.3, 0.2), Row(top_k=1, top_p=0.8)),
    "top_k=1 and top_p=.8, flat": (FLAT, Row(top_k=1, top_p=0.8)),
    "top_k=2 and top_p=.55 renormalized": (STAIRS, Row(top_k=2, top_p=0.55)),
    "top_k=3 and top_p=.8 renormalized": (STAIRS, Row(top_k=3, top_p=0.8)),
    "one token at .99, top_p=.8": (NINES, Row(top_p=0.8)),
    "one token at .99, top_p=.995": (NINES, Row(top_p=0.995)),
    "one token at .99, last, top_p=.5": (NINES[::-1], Row(top_p=0.5)),
    "ties at the bound of top_k": ((1.0, 0.5, 2.0, 0.5, 0.5), Row(top_k=3)),
    "ties at the bound of top_p": (logs(0.1, 0.4, 0.1, 0.2, 0.2), Row(top_p=0.5)),
    "ties at the bounds of both": ((0.0, 1.0, 0.0, 0.0, 0.0), Row(top_k=4, top_p=0.7)),
    "zero and minus zero tie": ((-0.0, 0.0, -0.0, -1.0), Row(top_k=2)),
    "flat, top_p=.5": (FLAT, Row(top_p=0.5)),
    "flat, top_p=.8 of five": (FLAT[:5], Row(top_p=0.8)),
    "flat, top_k=3": (FLAT, Row(top_k=3)),
    "flat, tiny top_p": (FLAT, Row(top_p=1e-6)),
    "top_p crossed exactly": (logs(0.5, 0.25, 0.25), Row(top_p=0.75)),
    "top_p just past a token": (STAIRS, Row(top_p=0.41)),
    "top_k of the whole vocabulary": (STAIRS, Row(top_k=5)),
    "top_k beyond the vocabulary": (STAIRS, Row(top_k=7)),
    "top_k=-1": (STAIRS, Row(top_k=-1)),
    "top_k beyond, top_p too": (STAIRS, Row(top_k=2**31 - 1, top_p=0.6)),
    "min_p=1": (STAIRS, Row(min_p=1.0)),
    "min_p=1 and ties": (FLAT, Row(min_p=1.0)),
    "min_p=.3": (STAIRS, Row(min_p=0.3)),
    "min_p after top_p": (STAIRS, Row(top_p=0.9, min_p=0.3)),
    "all three": (STAIRS, Row(top_k=4, top_p=0.8, min_p=0.5)),
    "temperature comes first": (STAIRS, Row(temperature=2.0, top_p=0.6)),
    "a sharp temperature": (STAIRS, Row(temperature=0.2, top_p=0.9)),
    "negative logits": ((-50.0, -51.0, -49.0, -53.0), Row(top_k=2)),
    "one token": ((3.0,), Row(top_k=1, top_p=0.1, min_p=1.0)),
}


@cache
def noise_by_position(vocab_size, num_positions=20_000):
    position = torch.arange(num_positions, device=DEVICE)
    zero = torch.zeros_like(position)
    return gumbel(row_words(zero, zero, position, vocab_size))


def kept_by_probing(sample, logits, row):
    """The kept set of an operator that only returns draws: for each token, a draw that it wins if it is kept.

    The random numbers are known, so for a token v find a position at which v's noise makes it the winner over the
    whole vocabulary: the operator returns v there exactly if v was kept.
    """
    scaled = torch.tensor(logits, device=DEVICE) / row.temperature
    winner = (scaled + noise_by_position(len(logits))).argmax(-1)
    rows = [replace(row, position=int((winner == v).nonzero()[0])) for v in range(len(logits))]
    got = choose(sample, [logits] * len(rows), rows)
    assert all(0 <= token < len(logits) for token in got)
    return {v for v, token in enumerate(got) if v == token}


def check_kept_set(sample, name):
    logits, row = KEPT_SETS[name]
    kept = kept_by_probing(sample, logits, row)
    assert kept == kept_by_hand(logits, row)
    assert kept


@pytest.mark.parametrize("name", KEPT_SETS)
@pytest.mark.parametrize("operators", BACKENDS)
def test_E3_kept_set_equals_the_rules(operators, name):
    check_kept_set(backend(operators).sample, name)


@pytest.mark.parametrize("name", KEPT_SETS)
def test_E3_the_sampler_by_hand_passes_the_check(name):
    check_kept_set(sampler_by_hand(), name)


E3_MUTANTS = {
    "not renormalized": (Rules(renormalize=False), "top_k=3 and top_p=.8 renormalized"),
    "everything masked": (Rules(renormalize=False, from_below=True, at_least_one=False), "top_k=1 and top_p=.8, flat"),
    "crossing token dropped": (Rules(keep_crossing=False), "top_p just past a token"),
    "ties by higher id, top_k": (Rules(low_ids_first=False), "ties at the bound of top_k"),
    "ties by higher id, top_p": (Rules(low_ids_first=False), "flat, top_p=.5"),
    "top_p before top_k": (Rules(top_p_first=True), "top_k=3 and top_p=.8 renormalized"),
    "min_p of the whole mass": (Rules(min_p_of_all=True), "min_p=.3"),
    "nothing left": (Rules(keep_crossing=False, at_least_one=False), "one token at .99, top_p=.8"),
    "top_k wraps around": (Rules(clamp_top_k=False), "top_k beyond the vocabulary"),
}


@pytest.mark.parametrize("mutant", E3_MUTANTS)
def test_E3_check_catches(mutant):
    rules, name = E3_MUTANTS[mutant]
    with pytest.raises(AssertionError):
        check_kept_set(sampler_by_hand(rules), name)


TARGETS = {
    "everything": Row(seed=42, position=17),
    "filtered": Row(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=42, position=17),
    "nucleus": Row(temperature=1.3, top_p=0.95, seed=-5, position=3),
    "greedy": Row(temperature=0.0, seed=42, position=17),
}


def check_alone_and_among_mates(sample, target, vocab_size=1300):
    generator = draws(4)
    own = normal((1, vocab_size), generator)
    alone = choose(sample, own, [target])
    mates = normal((3, vocab_size), generator)
    broken = torch.full_like(own, NAN)
    other = replace(target, seed=target.seed + 1)
    batches = [
        ([mates[:1], own], [Row(seed=977), target]),
        ([own, mates], [target, other, Row(temperature=0.0), Row(top_k=3, seed=8)]),
        ([mates, own, broken], [Row(seed=1), replace(target, sibling=1), Row(min_p=0.2), target, target]),
        ([own, own, own], [target, target, target]),
    ]
    for logits, rows in batches:
        got = choose(sample, torch.cat(logits), rows)
        same = torch.cat(logits).eq(own).all(-1).tolist()
        for token, row, is_own in zip(got, rows, same, strict=True):
            if is_own and row == target:
                assert token == alone[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operators", BACKENDS)
def test_E1_seeded_output_does_not_change_with_batch_mates(operators, target):
    check_alone_and_among_mates(backend(operators).sample, TARGETS[target])


def test_E1_equal_logits_and_keys_give_equal_tokens_in_all_backends():
    logits = normal((12, 2500), draws(9)) * 3
    rows = [replace(list(TARGETS.values())[n % 4], position=n, sibling=n % 3) for n in range(12)]
    by_hand = choose(sampler_by_hand(), logits, rows)
    assert len(set(by_hand)) > 6
    for name in BACKENDS:
        assert choose(backend(name).sample, logits, rows) == by_hand


def test_E1_check_catches_random_numbers_keyed_by_slot():
    with pytest.raises(AssertionError):
        check_alone_and_among_mates(sampler_by_hand(Rules(keyed_by_slot=True)), TARGETS["everything"])


@pytest.mark.parametrize("operators", BACKENDS)
def test_seed_sibling_and_position_each_make_another_draw(operators):
    sample = backend(operators).sample
    base = Row(seed=1, sibling=0, position=100)
    for change in ("seed", "sibling", "position"):
        rows = [replace(base, **{change: n}) for n in range(8)]
        assert len(set(choose(sample, torch.zeros((8, 3000)), rows))) > 4


@pytest.mark.parametrize("operators", BACKENDS)
def test_filters_that_filter_nothing_change_no_draw(operators):
    sample = backend(operators).sample
    logits = normal((4, 1300), draws(2))
    plain = choose(sample, logits, [Row(seed=n) for n in range(4)])
    wide = [Row(seed=n, top_k=1299, top_p=0.999999, min_p=1e-12) for n in range(4)]
    assert choose(sample, logits, wide) == plain


BROKEN = [(NAN, 0.0, 1.0), (0.0, 1.0, NAN), (0.0, INF, 1.0), (-INF, -INF, -INF), (NAN, INF, -INF)]
PARAMETERS = [Row(), Row(temperature=0.0), Row(top_k=2, top_p=0.9, min_p=0.1)]


@pytest.mark.parametrize("row", PARAMETERS)
@pytest.mark.parametrize("operators", BACKENDS)
def test_rows_that_are_not_finite_fail_alone(operators, row):
    sample = backend(operators).sample
    good = (0.0, 50.0, -INF)
    logits = [good, *BROKEN, good]
    assert choose(sample, logits, [row] * len(logits)) == [1, -1, -1, -1, -1, -1, 1]
    if row.temperature == 0:
        assert choose(sample, logits, [row] * len(logits), greedy_only=True) == [1, -1, -1, -1, -1, -1, 1]


@pytest.mark.parametrize("operators", BACKENDS)
def test_banned_tokens_are_never_drawn(operators):
    sample = backend(operators).sample
    logits = torch.full((12, 1100), -INF)
    logits[:, [3, 1099]] = torch.tensor([0.0, 1.0])
    rows = [replace(PARAMETERS[n % 3], position=n, temperature=1.0, min_p=0.0) for n in range(12)]
    assert set(choose(sample, logits, rows)) == {3, 1099}


GREEDY = [0.0, 1e-12, 9.9e-6]


def check_greedy(sample, greedy_only, vocab_size=9000):
    logits = normal((len(GREEDY), vocab_size), draws(3))
    logits[0, [8191, 8192, 8999]] = 9.0
    logits[1, [5, 300, 1029]] = 9.0
    logits[2] = 0.0
    rows = [Row(temperature=t, top_k=2, top_p=0.5, seed=n) for n, t in enumerate(GREEDY)]
    assert choose(sample, logits, rows, greedy_only=greedy_only) == [8191, 5, 0]


@pytest.mark.parametrize("greedy_only", [True, False])
@pytest.mark.parametrize("operators", BACKENDS)
def test_greedy_takes_the_lowest_id_of_the_largest(operators, greedy_only):
    check_greedy(backend(operators).sample, greedy_only)


def test_greedy_check_catches_the_highest_id():
    def highest(logits, **params):
        return logits.shape[1] - 1 - reference.sample(logits.flip(1), **params)

    with pytest.raises(AssertionError):
        check_greedy(highest, greedy_only=False)


# The interpreter warns of infinities that are meant: one is held within range, the other weighs nothing.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("operators", BACKENDS)
@pytest.mark.parametrize(
    "row", [Row(temperature=1e-5), Row(temperature=1e-5, top_p=0.9), Row(temperature=1e-5, top_k=2)]
)
def test_tiny_temperatures_are_greedy_without_overflow(operators, row):
    logits = [(1e4, 1.5e4, -1e4), (3e38, -3e38, 0.0), (-3e38, -2e38, -3.3e38)]
    assert choose(backend(operators).sample, logits[:2], [row] * 2) == [1, 0]
    assert choose(backend(operators).sample, logits[2:], [row])[0] in {0, 1, 2}


def test_large_vocabularies_cross_tiles_and_chunks():
    logits = normal((4, 9500), draws(5)) * 2
    rows = [Row(seed=3), Row(seed=4, top_k=50), Row(seed=5, top_p=0.7), Row(seed=6, top_k=800, top_p=0.95, min_p=0.001)]
    # Ties at the bound that lie in different tiles: only the first ones may stay.
    logits[1].round_(decimals=1)
    for n in range(2):
        rows = [replace(row, position=n) for row in rows]
        assert choose(backend("triton").sample, logits, rows) == choose(reference.sample, logits, rows)


def test_uses_are_counted_by_path():
    operators = backend("triton")
    choose(operators.sample, [STAIRS], [Row(temperature=0.0)], greedy_only=True)
    choose(operators.sample, [STAIRS] * 2, [Row(), Row(top_k=2)])
    assert operators.counters == {"sample.greedy": 1, "sample.gumbel": 1}


def p_value(tokens, probabilities):
    """Chi-square: how likely frequencies as far from these probabilities are, if the probabilities are right."""
    expected = probabilities * len(tokens)
    counted = torch.bincount(tokens, minlength=len(probabilities)).double()
    possible = expected > 0
    assert counted[~possible].sum() == 0
    assert expected[possible].min() >= 5
    statistic = ((counted - expected)[possible].square() / expected[possible]).sum()
    return float(torch.special.gammaincc((possible.sum() - 1) / 2, statistic / 2))


DISTRIBUTIONS = {
    "everything": Row(),
    "hot": Row(temperature=1.7),
    "cold": Row(temperature=0.6),
    "top_k": Row(top_k=7),
    "top_p": Row(top_p=0.7),
    "min_p": Row(min_p=0.2),
    "all": Row(temperature=1.2, top_k=12, top_p=0.9, min_p=0.1),
}


def check_distribution(sample, row, num_rows, varying="position"):
    logits = normal((20,), draws(11)).cpu()
    kept = torch.zeros(20, dtype=torch.bool)
    kept[list(kept_by_hand(logits.tolist(), row))] = True
    truth = torch.softmax((logits.double() / row.temperature).masked_fill(~kept, -INF), 0)
    params = tensors([row]) | {}
    params = {name: value.expand(num_rows).contiguous() for name, value in params.items()}
    params[varying] = torch.arange(num_rows, device=DEVICE).to(params[varying].dtype)
    rows = logits.to(DEVICE).expand(num_rows, -1).contiguous()
    assert p_value(sample(rows, **params, greedy_only=False).cpu(), truth) > 1e-3


@pytest.mark.parametrize("varying", ["position", "seed", "sibling"])
@pytest.mark.parametrize("row", DISTRIBUTIONS)
def test_frequencies_follow_the_softmax(row, varying):
    check_distribution(reference.sample, DISTRIBUTIONS[row], 5000, varying)


def test_frequencies_of_the_kernels_follow_the_softmax():
    check_distribution(backend("triton").sample, Row(temperature=4.0), 200)


def uniform_noise(logits, *, temperature, seed, sibling, position, **_):
    words = row_words(seed, sibling, position, logits.shape[1])
    return (logits / temperature[:, None] + words * 2.0**-32).argmax(-1)


DISTRIBUTION_MUTANTS = {
    "temperature ignored": (
        Row(temperature=1.7),
        lambda x, *, temperature, **p: reference.sample(x, temperature=temperature / temperature, **p),
    ),
    "noise scaled by temperature": (
        Row(temperature=0.6),
        lambda x, *, temperature, **p: reference.sample(x * 0.6, temperature=temperature, **p),
    ),
    "uniform noise": (Row(), uniform_noise),
    "no noise": (Row(), lambda x, **_: x.argmax(-1)),
    "position ignored": (Row(), lambda x, *, position, **p: reference.sample(x, position=position * 0, **p)),
    "variates used again": (
        Row(),
        lambda x, **p: reference.sample(x, **p | {"position": p["position"] // 50}),
    ),
}


@pytest.mark.parametrize("mutant", DISTRIBUTION_MUTANTS)
def test_distribution_check_catches(mutant):
    row, sample = DISTRIBUTION_MUTANTS[mutant]
    with pytest.raises(AssertionError):
        check_distribution(sample, row, 5000)


def test_siblings_are_independent():
    """Draws of two siblings at the same positions: all pairs equally often."""
    num_rows, vocab_size = 20_000, 6
    params = {name: value.expand(num_rows).contiguous() for name, value in tensors([Row(seed=7)]).items()}
    params["position"] = torch.arange(num_rows, device=DEVICE)
    logits = torch.zeros((num_rows, vocab_size), device=DEVICE)
    first, second = (
        reference.sample(logits, **params | {"sibling": torch.full_like(params["sibling"], n)}, greedy_only=False)
        for n in range(2)
    )
    pairs = (first * vocab_size + second).cpu()
    assert p_value(pairs, torch.full((vocab_size**2,), 1 / vocab_size**2, dtype=torch.float64)) > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("row", DISTRIBUTIONS)
def test_frequencies_on_a_gpu(row):
    check_distribution(backend("triton").sample, DISTRIBUTIONS[row], 200_000)


@pytest.mark.gpu
def test_a_real_vocabulary_gives_the_references_tokens():
    vocab_size, num_rows = 151_936, 64
    logits = normal((num_rows, vocab_size), draws(1)) * 3
    kinds = [*TARGETS.values(), Row(top_k=1), Row(top_p=0.999), Row(min_p=0.05), Row(top_k=20, top_p=0.95)]
    rows = [replace(kinds[n % 8], position=n, seed=n // 8) for n in range(num_rows)]
    # The logarithm's last bit may differ, and with it one draw in very many.
    got, truth = choose(backend("triton").sample, logits, rows), choose(reference.sample, logits, rows)
    assert sum(a != b for a, b in zip(got, truth, strict=True)) <= 1
