"""What a person sees while a model loads."""

from __future__ import annotations

from streamgen.server.progress import LoadProgress


def test_a_stage_that_never_said_it_ended_has_when_the_next_begins() -> None:
    with LoadProgress(terminal=True) as progress:
        progress("Finding", 0, 2)
        progress("Reading", 1, 4)
        assert progress._bars is not None
        finding, reading = progress._bars.tasks
        assert finding.finished
        assert not reading.finished
    assert reading.finished


def test_a_stage_that_failed_has_not_ended() -> None:
    progress = LoadProgress(terminal=True)
    error = ValueError("broken")
    progress.__enter__()
    progress("Finding", 0, 2)
    progress.__exit__(ValueError, error, None)
    assert progress._bars is not None
    assert not progress._bars.tasks[0].finished
