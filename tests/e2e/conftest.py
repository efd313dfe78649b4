from collections.abc import AsyncIterator

import pytest_asyncio

from tests.e2e.cdp import Browser, chromium


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One process for all tests; each opens pages with a storage of their own."""
    async with chromium() as browser:
        yield browser
