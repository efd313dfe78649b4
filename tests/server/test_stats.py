"""GET /stats."""

from __future__ import annotations

from streamgen.config import ServerConfig
from streamgen.server.app import create_app
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, error_of, in_process


async def test_a_glance_at_the_engine() -> None:
    async with in_process(app_on(FakeEngine())) as client:
        first, second = (await client.get("/stats")).json(), (await client.get("/stats")).json()
    assert first["model"] == "tiny"
    assert (first["running"], first["waiting"], first["kv_cache_usage"]) == (0, 0, 0.25)
    assert {"generation_tokens", "prompt_tokens", "preemptions", "prefix_cache_hits", "max_model_len"} <= set(first)
    assert second["seconds"] >= first["seconds"]


async def test_it_needs_a_key_once_there_are_keys() -> None:
    async with in_process(app_on(FakeEngine(), ServerConfig(api_key=("k",)))) as client:
        assert (await client.get("/stats")).status_code == 401
        assert (await client.get("/stats", headers={"Authorization": "Bearer k"})).status_code == 200


async def test_503_while_the_model_loads_and_when_the_engine_is_dead() -> None:
    async with in_process(create_app(None, None, ServerConfig())) as client:
        response = await client.get("/stats")
        assert response.status_code == 503
        error_of(response)
    engine = FakeEngine()
    engine.healthy = False
    async with in_process(app_on(engine)) as client:
        assert (await client.get("/stats")).status_code == 503
