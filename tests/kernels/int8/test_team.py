import gc
import threading

import numpy as np
import pytest

from streamgen_kernels.int8.native import compiled
from streamgen_kernels.int8.team import Team, _give_way, finish, take, wait


@compiled
def count(team, phases, chunks, counts, seen):
    """Each phase adds one to each of its chunks, and looks whether the phase before was done throughout."""
    for phase in range(phases):
        chunk = take(team, phase, chunks)
        while chunk >= 0:
            if phase > 0:
                for other in range(chunks):
                    seen[phase] += counts[phase - 1, other] != 1
            counts[phase, chunk] += 1
            chunk = finish(team, phase, chunks)
        wait(team, phase, chunks)


@compiled
def one_each(team, by):
    chunk = take(team, np.int64(0), 2)
    while chunk >= 0:
        by[chunk] = team[2]
        while by[1 - chunk] < 0:
            _give_way()
        chunk = finish(team, np.int64(0), 2)
    wait(team, np.int64(0), 2)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("chunks", [0, 1, 3, 64])
def test_each_chunk_is_done_once_and_phases_do_not_overlap(threads, chunks):
    team = Team(threads, 50)
    for _ in range(40):
        counts, seen = np.zeros((50, max(chunks, 1)), np.int64), np.zeros(50, np.int64)
        team.run(count, 50, chunks, counts, seen)
        assert (counts[:, :chunks] == 1).all()
        assert not seen.any()
    team.close()


def test_runs_are_told_apart_for_ever():
    team = Team(2, 3)
    for start in (0, 2**30 - 3):
        team._run = start
        for _ in range(6):
            counts, seen = np.zeros((3, 8), np.int64), np.zeros(3, np.int64)
            team.run(count, 3, 8, counts, seen)
            assert (counts == 1).all()
    team.close()


class Held:
    """A queue whose helper the system lets sleep."""

    def __init__(self):
        self.jobs = []
        self.put = self.jobs.append


def test_a_helper_that_comes_late_finds_nothing_to_do():
    """The caller does not wait for a helper that sleeps; what that one was to do is long over."""
    team = Team(2, 3)
    thread, queue, held = team._helpers[0].thread, team._helpers[0].jobs, Held()
    team._helpers[0].jobs = held
    results = []
    for _ in range(3):
        counts, seen = np.zeros((3, 8), np.int64), np.zeros(3, np.int64)
        team.run(count, 3, 8, counts, seen)
        results.append(counts)
    for job in held.jobs:
        queue.put(job)
    queue.put(None)
    thread.join(10)
    assert not thread.is_alive()
    assert all((counts == 1).all() for counts in results)


def test_a_late_helper_of_a_dropped_team_does_not_touch_the_next_ones_chunks():
    """Memory of the dropped team's counters must not become the next one's while a helper still has their address."""
    old = Team(2, 3)
    thread, queue, held = old._helpers[0].thread, old._helpers[0].jobs, Held()
    old._helpers[0].jobs = held
    stale, seen = np.zeros((3, 8), np.int64), np.zeros(3, np.int64)
    old.run(count, 3, 8, stale, seen)
    addresses = old._counters.ctypes.data
    del old
    gc.collect()
    others = [Team(1, 3) for _ in range(200)]
    assert all(other._counters.ctypes.data != addresses for other in others)
    for job in held.jobs:
        queue.put(job)
    queue.put(None)
    thread.join(10)
    assert not thread.is_alive()
    assert (stale == 1).all()


def test_helpers_do_their_share():
    """The caller waits inside its first chunk until somebody else has taken one."""
    team = Team(2, 1)
    for _ in range(3):
        by = np.full(2, -1, np.int64)
        team.run(one_each, by)
        assert sorted(by) == [0, 1]
    team.close()


def test_what_a_helper_raises_reaches_the_caller():
    team = Team(2, 1)
    helper = team._helpers[0]

    def function(place):
        if place[2] == 1:
            raise ValueError("the helper's")
        while helper.error is None:
            helper.thread.join(0.001)

    with pytest.raises(ValueError, match="the helper's"):
        team.run(function)
    team.close()


def test_a_closed_team_leaves_no_thread():
    before = set(threading.enumerate())
    team = Team(4, 1)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 3
    team.close()
    for helper in helpers:
        helper.join(10)
        assert not helper.is_alive()
