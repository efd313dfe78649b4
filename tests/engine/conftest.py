"""The engine as a library: nobody has configured structlog, whatever other tests did before."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def unconfigured_structlog() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)
