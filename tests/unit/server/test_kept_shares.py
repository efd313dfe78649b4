"""Who makes room for what is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamgen.server.kept_shares import Shares

MAX_ITEMS, MAX_BYTES = 5, 100


def shares(**sizes: int) -> Shares[str]:
    """Keys such as a1 and a2, of tenant a."""
    made: Shares[str] = Shares(max_items=MAX_ITEMS, max_bytes=MAX_BYTES)
    for key, size in sizes.items():
        made.add(key, key[0], size)
    return made


def test_within_the_bounds_nobody_makes_room() -> None:
    assert shares(a1=50, b1=50).to_make_room("b1") == []


def test_who_keeps_the_most_bytes_makes_room_whoever_grows() -> None:
    for cause in ("a1", "b1", "b2"):
        assert shares(a1=10, b1=40, a2=20, b2=31).to_make_room(cause) == ["b1", "b2"]


def test_who_keeps_the_most_makes_room_where_there_are_too_many() -> None:
    assert shares(a1=0, b1=90, a2=0, c1=0, a3=0, b2=0).to_make_room("b2") == ["a1", "a2", "a3"]


def test_of_equals_it_is_the_one_that_wants_the_room() -> None:
    assert shares(a1=0, b1=0, c1=0, d1=0, e1=0, f1=0).to_make_room("f1") == ["f1"]
    assert shares(a1=60, b1=60).to_make_room("b1") == ["b1"]


def test_growth_and_removal_are_counted() -> None:
    made = shares(a1=10, b1=20)
    made.grow("a1", 80)
    assert made.to_make_room("b1") == ["a1"]
    made.grow("a1", -30)
    assert made.num_bytes == 80
    made.remove("b1")
    assert made.num_bytes == 60
    made.check()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 60))))
def test_invariants(steps: list[tuple[str, int, int]]) -> None:
    made: Shares[str] = Shares(max_items=MAX_ITEMS, max_bytes=MAX_BYTES)
    sizes: dict[str, int] = {}
    for tenant, number, by in steps:
        key = f"{tenant}{number}"
        if key in sizes:
            made.grow(key, by)
        else:
            made.add(key, tenant, by)
        sizes[key] = sizes.get(key, 0) + by
        while candidates := made.to_make_room(key):
            owner = candidates[0][0]
            own = [size for other, size in sizes.items() if other[0] == owner]
            num_tenants = len({other[0] for other in sizes})
            # What goes is a tenant's that has at least an equal share, and more wherever tenants differ.
            assert sum(own) >= MAX_BYTES / num_tenants or len(own) >= MAX_ITEMS / num_tenants
            made.remove(candidates[0])
            del sizes[candidates[0]]
            made.check()
        assert made.num_bytes == sum(sizes.values()) <= MAX_BYTES
        assert len(sizes) <= MAX_ITEMS
