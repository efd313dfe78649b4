"""The sum of what unfinished requests hold."""

import pytest

from streamgen.errors import QueueFullError
from streamgen.server.held_bytes import FREE_BYTES, HeldBytes


def test_the_beginning_of_each_request_is_free():
    held = HeldBytes(limit=10)
    for _ in range(100):
        held.open().resize(FREE_BYTES)
    assert held.total == 0


def test_the_sum_is_bounded_and_a_refused_request_keeps_what_it_had():
    held = HeldBytes(limit=10)
    first, second = held.open(), held.open()
    first.resize(FREE_BYTES + 6)
    second.resize(FREE_BYTES + 4)
    assert held.total == 10
    for hold in (first, second):
        with pytest.raises(QueueFullError):
            hold.resize(FREE_BYTES + 7)
    assert held.total == 10
    first.resize(FREE_BYTES + 5)
    second.resize(FREE_BYTES + 5)
    first.release()
    first.release()
    assert held.total == 5


def test_one_alone_is_never_too_much_and_keeps_others_out():
    held = HeldBytes(limit=10)
    with held.open() as large:
        large.resize(FREE_BYTES + 1000)
        other = held.open()
        other.resize(FREE_BYTES)
        with pytest.raises(QueueFullError):
            other.resize(FREE_BYTES + 1)
        large.resize(FREE_BYTES + 5)
    assert held.total == 0
    other.resize(FREE_BYTES + 1)
    assert held.total == 1
