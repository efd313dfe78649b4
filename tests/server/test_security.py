"""Keys, origins, sizes, and what a client's bytes may do to headers and logs."""

import asyncio
import base64

import httpx
import pytest
import structlog

from streamgen.config import ServerConfig
from streamgen.errors import AuthenticationError, ConfigError, PermissionDeniedError
from streamgen.server.auth import KeyRing, OriginPolicy, check_host, check_key, check_origin, presented_key
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, chat_body, error_of, in_process, listening

CHAT = "/v1/chat/completions"
KEY = "sk-0123456789"
KEYED = ServerConfig(api_key=("another", KEY))
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


def all_paths(app):
    return [
        route.path.replace("{model:path}", "tiny")
        for route in app.routes
        if hasattr(route, "methods") and route.methods
    ]


PUBLIC = {"/", "/health", "/ready"}


@pytest.mark.parametrize("root_path", ["", "/v", "/llm", "/llm/", "/v1"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
async def test_F2_every_route_needs_a_key_but_those_listed(root_path, method):
    engine = FakeEngine()
    app = app_on(engine, ServerConfig(api_key=(KEY,), root_path=root_path))
    async with in_process(app) as client:
        for path in all_paths(app):
            for prefix in ("", "/" + root_path.strip("/")) if root_path else ("",):
                response = await client.request(method, prefix + path, json=chat_body() if method == "POST" else None)
                if path in PUBLIC and method in {"GET", "HEAD"} and (not prefix or prefix != "/v1"):
                    assert response.status_code != 401, prefix + path
                elif path not in PUBLIC or method not in {"GET", "HEAD"}:
                    assert response.status_code == 401, (method, prefix + path)
    assert engine.streams == []


SPELLINGS = (
    "//v1/models",
    "/V1/models",
    "/v1//models",
    "/v1/models/",
    "/v1/./models",
    "/v1/models%0a",
    "/v1%2fmodels",
    "/v1/models;/health",
    "/health/../v1/models",
    "/health/",
    "//health",
    "/Health",
    "/health%00",
    "/health%0a",
    "/static",
    "/metrics/",
    "/metrics",
    "/stats",
    "/docs",
    "/openapi.json",
    "/llm/llm/v1/models",
    "/v1/ws",
)


@pytest.mark.parametrize("root_path", ["", "/v", "/llm"])
async def test_F2_no_spelling_of_a_path_gets_around_the_key(root_path):
    """On a real socket, where nobody tidies up the path first."""
    async with listening(app_on(FakeEngine(), ServerConfig(api_key=(KEY,), root_path=root_path))) as base:
        for path in SPELLINGS:
            for prefix in {"", root_path}:
                assert await status_of(base, prefix + path) == 401
                with_key = await status_of(base, prefix + path, f"Authorization: Bearer {KEY}\r\n")
                assert with_key in {200, 404, 426}, (path, with_key)


async def test_F2_below_the_public_folder_is_nothing_but_files():
    async with listening(app_on(FakeEngine(), KEYED)) as base:
        for path in (
            "/static/../v1/models",
            "/static/%2e%2e/v1/models",
            "/static//v1/models",
            "/static/..%2f..%2fpyproject.toml",
        ):
            assert await status_of(base, path) == 404


async def status_of(base, path, headers="", host="localhost"):
    reader, writer = await asyncio.open_connection(*base.removeprefix("http://").split(":"))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n".encode())
    answer = await reader.readuntil(b"\r\n")
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def test_F2_metrics_are_public_only_if_said_so():
    for public, status in ((False, 401), (True, 404)):
        config = ServerConfig(api_key=(KEY,), public_metrics=public)
        async with in_process(app_on(FakeEngine(), config)) as client:
            assert (await client.get("/metrics")).status_code == status


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Bearer x{KEY}",
        f"Bearer {KEY} {KEY}",
        f"Bearer {KEY},another",
        f"Bearer{KEY}",
        *(f"Bearer {KEY[:n]}" for n in range(len(KEY))),
    ],
)
async def test_F5_keys_that_are_not_quite_it(authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    async with in_process(app_on(FakeEngine(), KEYED)) as client:
        response = await client.get("/v1/models", headers=headers)
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert KEY not in response.text


@pytest.mark.parametrize("key", [b"\xff\xfe", "klíč".encode(), "clé".encode("latin-1"), b"\x80" * 5000, b"\x00"])
async def test_F5_keys_that_are_no_ascii(key):
    async with in_process(app_on(FakeEngine(), KEYED)) as client:
        response = await client.get("/v1/models", headers=[(b"Authorization", b"Bearer " + key)])
        assert response.status_code == 401
        error_of(response)


async def test_F5_the_right_keys():
    engine = FakeEngine()
    async with in_process(app_on(engine, KEYED)) as client:
        for key in (KEY, "another"):
            for scheme in ("Bearer", "bearer", "BEARER"):
                response = await client.post(CHAT, json=chat_body(), headers={"Authorization": f"{scheme}  {key} "})
                assert response.status_code == 200
        twice = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer no")]
        assert (await client.get("/v1/models", headers=twice)).status_code == 401
    tenants = [stream.asked["tenant"] for stream in engine.streams]
    assert len(set(tenants[:3])) == len(set(tenants[3:])) == 1
    assert tenants[0] != tenants[3]
    assert all(tenant and KEY not in tenant for tenant in tenants)


def test_F5_only_digests_are_kept_and_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("streamgen.server.auth.hmac.compare_digest", compare)
    ring = KeyRing(["a", "b", "c"])
    assert "'a'" not in repr(vars(ring))
    ring.tenant(b"a")
    assert len(compared) == 3
    assert all(len(x) == len(y) == 32 for x, y in compared)


@pytest.mark.parametrize("key", ["", " a", "klíč", "a\nb"])
def test_keys_that_no_header_can_carry_are_refused_at_start(key):
    with pytest.raises(ConfigError):
        KeyRing([key])


def test_a_key_as_a_sub_protocol():
    ring = KeyRing([KEY])
    encoded = base64.urlsafe_b64encode(KEY.encode()).rstrip(b"=")

    def offering(*offers):
        return [(b"sec-websocket-protocol", b", ".join(offers))]

    assert check_key(offering(b"streamgen.v1", b"streamgen.key." + encoded), ring) == ring.tenant(KEY.encode())
    for bad in (b"streamgen.key.", b"streamgen.key.!!", b"streamgen.key.\xff", b"streamgen.key." + encoded[:-1]):
        with pytest.raises(AuthenticationError):
            check_key(offering(b"streamgen.v1", bad), ring)
    two = offering(b"streamgen.key." + encoded, b"streamgen.key." + encoded)
    assert presented_key(two) is None


def headers(**fields):
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]


@pytest.mark.parametrize(
    "loopback, allowed, fields, right",
    [
        (False, (), {}, True),
        (False, (), {"origin": "http://box:8000", "host": "box:8000"}, True),
        (False, (), {"origin": "https://BOX", "host": "box"}, True),
        (False, (), {"origin": "http://evil.example", "host": "box:8000"}, False),
        (False, (), {"origin": "http://box:9000", "host": "box:8000"}, False),
        (False, (), {"origin": "null", "host": "box"}, False),
        (False, (), {"origin": "", "host": ""}, False),
        (False, (), {"origin": "http://[::1", "host": "[::1"}, False),
        (False, ("https://a.example",), {"origin": "https://a.example", "host": "box"}, True),
        (False, ("https://a.example/",), {"origin": "https://A.example", "host": "box"}, True),
        (False, ("https://a.example",), {"origin": "http://a.example", "host": "box"}, False),
        (False, ("https://a.example",), {"origin": "https://a.example.evil.example", "host": "box"}, False),
        (False, ("*",), {"origin": "null", "host": "box"}, True),
        (True, (), {"origin": "http://localhost:8000", "host": "localhost:8000"}, True),
        (True, (), {"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000"}, True),
        (True, (), {"origin": "http://[::1]:8000", "host": "[::1]:8000"}, True),
        (True, (), {"origin": "http://rebound.example:8000", "host": "rebound.example:8000"}, False),
        (True, (), {"origin": "http://127.0.0.1.evil.example", "host": "127.0.0.1.evil.example"}, False),
        (True, ("http://proxy.example",), {"origin": "http://proxy.example", "host": "proxy.example"}, True),
        (True, (), {"origin": "https://p.example", "host": "127.0.0.1:8000", "sec_fetch_site": "same-origin"}, True),
        (True, (), {"origin": "https://p.example", "host": "127.0.0.1:8000", "sec_fetch_site": "cross-site"}, False),
    ],
)
def test_which_pages_may_use_the_server(loopback, allowed, fields, right):
    policy = OriginPolicy(allowed, loopback=loopback)
    if right:
        check_origin(headers(**fields), policy)
    else:
        with pytest.raises(PermissionDeniedError):
            check_origin(headers(**fields), policy)


@pytest.mark.parametrize(
    "host, allowed, right",
    [
        ("localhost", (), True),
        ("LocalHost:8000", (), True),
        ("localhost.", (), True),
        ("chat.localhost:1", (), True),
        ("127.0.0.1:8000", (), True),
        ("127.8.9.10", (), True),
        ("[::1]", (), True),
        ("[::1]:8000", (), True),
        ("rebound.example", (), False),
        ("rebound.example:8000", (), False),
        ("127.0.0.1.rebound.example", (), False),
        ("localhost.rebound.example", (), False),
        ("notlocalhost", (), False),
        ("localhost@rebound.example", (), False),
        ("10.0.0.1", (), False),
        ("0.0.0.0", (), False),
        ("2130706433", (), False),
        ("[::1", (), False),
        ("", (), False),
        ("\xff", (), False),
        ("proxy.example", ("https://proxy.example",), True),
        ("PROXY.example:8443", ("https://proxy.example",), True),
        ("other.example", ("https://proxy.example",), False),
        ("", ("null",), False),
        ("any.example", ("*",), True),
    ],
)
def test_by_which_names_a_server_of_one_machine_may_be_asked_for(host, allowed, right):
    fields = [(b"host", host.encode("latin-1"))]
    check_host(fields, OriginPolicy(allowed, loopback=False))
    policy = OriginPolicy(allowed, loopback=True)
    check_host([], policy)
    if right:
        check_host(fields, policy)
        check_host(fields * 2, policy)
    else:
        for some in (fields, [(b"host", b"localhost"), *fields], [*fields, (b"host", b"localhost")]):
            with pytest.raises(PermissionDeniedError):
                check_host(some, policy)


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_a_page_whose_name_is_rebound_to_this_machine_reads_nothing(keys):
    """It sends no Origin with a GET, and a browser takes its WebSocket for one of the same site."""
    rebound = {"Host": "rebound.example:8000"}
    engine = FakeEngine()
    app = app_on(engine, ServerConfig(api_key=keys))
    async with in_process(app) as client:
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            for path in (*all_paths(app), "/static/chat.js", "/nothing"):
                response = await client.request(method, path, headers={**rebound, **WITH_KEY})
                assert response.status_code == 403, (method, path)
                if method != "HEAD":
                    assert error_of(response)["code"] == "permission_denied"
    async with listening(app) as base:
        asks = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        asks += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: streamgen.v1\r\n"
        authorization = f"Authorization: Bearer {KEY}\r\n"
        assert await status_of(base, "/v1/ws", asks + authorization, host="rebound.example") == 403
        assert await status_of(base, "/v1/models", authorization, host="rebound.example") == 403
        assert await status_of(base, "/v1/models", authorization) == 200
    assert engine.streams == []


async def test_a_server_of_many_machines_is_asked_for_by_any_name():
    async with in_process(app_on(FakeEngine(), ServerConfig(host="0.0.0.0"))) as client:
        assert (await client.get("/health", headers={"Host": "box.example"})).status_code == 200


async def test_another_sites_page_reaches_no_engine(client, engine):
    evil = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    response = await client.post(CHAT, json=chat_body(), headers=evil)
    assert response.status_code == 403
    assert error_of(response)["type"] == "permission_error"
    assert engine.streams == []
    assert "access-control-allow-origin" not in (await client.get("/v1/models", headers=evil)).headers


async def test_an_allowed_sites_page_may_read_answers_and_errors():
    config = ServerConfig(api_key=(KEY,), allowed_origins=("https://a.example/",))
    origin = {"Origin": "https://a.example"}
    async with in_process(app_on(FakeEngine(), config)) as client:
        asks = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = await client.options(CHAT, headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        for more, status in (({}, 401), (WITH_KEY, 200)):
            response = await client.post(CHAT, json=chat_body(), headers={**origin, **more})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == "https://a.example"
        other = {"Origin": "https://b.example", **WITH_KEY}
        assert (await client.post(CHAT, json=chat_body(), headers=other)).status_code == 403


@pytest.mark.parametrize("value", ["abc-123", "a.b_c:d/e+f=@", "x" * 128])
async def test_F17_a_harmless_request_id_comes_back_and_goes_on(client, engine, value):
    response = await client.post(CHAT, json=chat_body(), headers={"X-Request-Id": value})
    assert response.headers["x-request-id"] == value
    assert engine.streams[0].asked["correlation_id"] == value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"a b",
        b"a\r\nSet-Cookie: x=1",
        b"a\x1b[31m",
        b"a%0d%0a\tx",
        b"x" * 129,
        "ž".encode(),
        b"\xff",
        b"a\x00b",
        b'"',
    ],
)
async def test_F17_a_harmful_request_id_is_replaced(client, engine, value):
    for method, path in (("POST", CHAT), ("GET", "/nothing")):
        response = await client.request(method, path, json=chat_body(), headers=[(b"X-Request-Id", value)])
        made = response.headers["x-request-id"]
        assert len(made) == 32
        assert made.isalnum()
        assert "set-cookie" not in response.headers
    assert engine.streams[0].asked["correlation_id"] != value.decode("latin-1")


async def test_F17_what_is_logged_of_a_request():
    engine = FakeEngine()
    ugly = "/v1/x%0d%0a%1b[31mred%e2%80%a8" + "y" * 1000
    with structlog.testing.capture_logs() as lines:
        async with in_process(app_on(engine, KEYED)) as client:
            await client.get(ugly, headers={**WITH_KEY, "X-Request-Id": "id-1"})
            body = chat_body(user="u\r\n\x1b[31m")
            await client.post(CHAT, json=body, headers={**WITH_KEY, "X-Request-Id": "id-2"})
            await client.post(CHAT, json=chat_body(model="m\r\n\x1b[31m"), headers=WITH_KEY)
            await client.request("B\u2028AD".encode().decode("latin-1"), "/", headers=WITH_KEY)
    first, second = lines[0], lines[1]
    assert first["path"].startswith("/v1/x\\r\\n\\x1b[31mred\\u2028yyy")
    assert len(first["path"]) < 300
    assert (first["request_id"], first["status"]) == ("id-1", 404)
    assert second["status"] == 200
    assert (second["model"], second["completion_tokens"], second["finish_reason"]) == ("tiny", 3, "stop")
    for line in lines:
        assert all(value.isprintable() for value in map(str, line.values()))
        assert KEY not in str(line)


async def test_a_body_that_is_too_large():
    engine = FakeEngine()
    app = app_on(engine, ServerConfig(max_body_bytes=1000))
    async with listening(app) as base, httpx.AsyncClient(base_url=base) as client:
        body = b'{"model":"' + b"x" * 990 + b'"}'

        async def in_pieces():
            for i in range(0, len(body), 100):
                yield body[i : i + 100]

        for content in (body, in_pieces()):
            response = await client.post(CHAT, content=content)
            assert response.status_code == 413
            assert error_of(response)["code"] == "request_too_large"
        assert (await client.post(CHAT, content=b'{"model":"' + b"x" * 988 + b'"}')).status_code == 400
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        compressed = await client.post(CHAT, content=b"x", headers={"Content-Encoding": "gzip"})
        assert compressed.status_code == 400


async def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr("streamgen.server.body.BODY_TIMEOUT", 0.02)
    async with listening(app_on(FakeEngine())) as base:
        host, port = base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = await reader.readuntil(b"}}")
        assert b" 408 " in answer.split(b"\r\n")[0]
        writer.close()


async def test_the_page_runs_nothing_inline_and_nothing_from_elsewhere(client):
    response = await client.get("/")
    if response.status_code == 200:
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
