from collections.abc import AsyncIterator

import httpx
import pytest

from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, in_process


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """In process, on an app without keys."""
    async with in_process(app_on(engine)) as client:
        yield client
