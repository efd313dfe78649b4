"""A connection's frames, on a clock of the test's."""

from streamgen.server.ws_rate import FRAMES_AT_ONCE, FRAMES_PER_SECOND, FrameRate


def test_a_burst_is_let_through_and_then_so_many_a_second():
    rate = FrameRate(100.0)
    assert rate.allows(FRAMES_AT_ONCE, 100.0)
    for second in range(1, 60):
        assert rate.allows(int(FRAMES_PER_SECOND), 100.0 + second)
    assert not rate.allows(1, 159.0)


def test_silence_saves_up_no_more_than_a_burst():
    rate = FrameRate(0.0)
    assert rate.allows(FRAMES_AT_ONCE, 86400.0)
    assert not rate.allows(1, 86400.0)


def test_a_steady_sender_is_never_cut_off():
    rate = FrameRate(0.0)
    assert all(rate.allows(10, i / 100) for i in range(100_000))
