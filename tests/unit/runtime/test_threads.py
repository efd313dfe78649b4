import pytest

from streamgen.runtime.threads import SPIN_COUNT, prepare_threads


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, str(SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, None),
    ],
)
def test_the_spinning_is_bounded_unless_the_user_says_otherwise(monkeypatch, given, expected):
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    prepare_threads()
    assert environment.get("GOMP_SPINCOUNT") == expected
