from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgen.server.ws_replay import ReplayBuffer


def test_frames_behind_a_number() -> None:
    replay = ReplayBuffer(100)
    assert replay.after(0) == []
    for frame in ("a", "b", "c"):
        replay.append(frame)
    assert replay.after(0) == ["a", "b", "c"]
    assert replay.after(2) == ["c"]
    assert replay.after(3) == []
    assert replay.after(4) is None


def test_the_oldest_go_first_and_are_known_to_be_gone() -> None:
    replay = ReplayBuffer(10)
    for frame in ("aaaa", "bbbb", "cccc"):
        replay.append(frame)
    assert replay.first == 2
    assert replay.after(0) is None
    assert replay.after(1) == ["bbbb", "cccc"]


def test_the_newest_stays_even_if_it_is_too_long() -> None:
    replay = ReplayBuffer(3)
    replay.append("a")
    replay.append("€€")
    assert (replay.num_bytes, replay.after(1)) == (6, ["€€"])


@pytest.mark.parametrize("max_bytes", [1, 7, 64])
@given(frames=st.lists(st.text(min_size=1, max_size=9)))
def test_invariants(max_bytes: int, frames: list[str]) -> None:
    replay = ReplayBuffer(max_bytes)
    for frame in frames:
        replay.append(frame)
        replay.check()
        assert replay.after(replay.last - 1) == [frame]
