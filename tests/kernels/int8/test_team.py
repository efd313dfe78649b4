import threading
import time

import numpy as np
import pytest

from streamgen_kernels.int8.native import compiled
from streamgen_kernels.int8.team import Team, finish, take, wait


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


def test_a_helper_that_comes_late_finds_nothing_to_do():
    """The caller does not wait for a helper that the system lets sleep; what that one was to do is long over."""
    team = Team(2, 3)
    jobs, held = team._jobs[0], []

    class Held:
        put = staticmethod(held.append)

    team._jobs = [Held()]
    results = []
    for _ in range(3):
        counts, seen = np.zeros((3, 8), np.int64), np.zeros(3, np.int64)
        team.run(count, 3, 8, counts, seen)
        results.append(counts)
    for job in held:
        jobs.put(job)
    time.sleep(0.2)
    assert all((counts == 1).all() for counts in results)
    team._jobs = [jobs]
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
