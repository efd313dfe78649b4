from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SPIN_COUNT = 100_000
_CGROUP = Path("/sys/fs/cgroup")


def prepare_threads() -> None:
    """Bound how long torch's idle threads spin. Must be called before torch is imported: OpenMP looks once.

    A float32 step is some 150 short products with gaps between them. Threads that sleep in each gap
    (OMP_WAIT_POLICY=PASSIVE) make a decode step half as long again; threads that spin without a bound take the core
    that the event loop, or another program, has to run on. A user's own setting stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


@cache
def cpu_threads() -> int:
    """Threads that a step may use: torch's own number, which OMP_NUM_THREADS sets, within the container's quota.

    Asked before anything changes torch's number, and remembered: a second engine must not take over the first one's.
    """
    import torch

    threads = torch.get_num_threads()
    quota = cpu_quota()
    # A thread beyond the quota has the whole container put to sleep for the rest of each period.
    return threads if quota is None or "OMP_NUM_THREADS" in os.environ else max(1, min(threads, int(quota)))


def cpu_quota(root: Path = _CGROUP) -> float | None:
    """CPUs' worth of time that the container may use, or None for no limit (Linux control groups, both versions)."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None
