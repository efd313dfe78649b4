import pytest

from streamgen.runtime.threads import SPIN_COUNT, cpu_quota, prepare_threads


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


@pytest.mark.parametrize(
    "files, quota",
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "junk\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
    ],
)
def test_a_containers_quota_is_found(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota
