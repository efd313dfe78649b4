"""The protocol without a socket: messages in, events and frames out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgen.errors import StepError
from streamgen.server.kind import Kind
from streamgen.server.ws_protocol import (
    ENVELOPE_BYTES,
    MAX_BAD_FRAMES,
    MAX_ID_CHARS,
    MAX_REASON_BYTES,
    Cancel,
    Close,
    CloseCode,
    Create,
    Event,
    Protocol,
    Reply,
    RequestFrames,
    Resume,
    clip_reason,
)
from streamgen.types import Usage


def protocol(max_requests: int = 4, max_body_bytes: int = 4096) -> Protocol:
    return Protocol("s1", max_requests=max_requests, max_body_bytes=max_body_bytes)


def create(request_id: str = "a", **fields: Any) -> str:
    return json.dumps({"type": "chat.create", "id": request_id, "body": {"messages": []}, **fields})


def reply(event: Event) -> dict[str, Any]:
    assert isinstance(event, Reply)
    frame: dict[str, Any] = json.loads(event.frame)
    return frame


def test_the_greeting_names_session_and_protocol() -> None:
    assert json.loads(protocol().greeting()) == {"type": "session.created", "session": "s1", "protocol": 1}


@pytest.mark.parametrize("kind", list(Kind))
def test_create_opens_an_id_and_slices_the_body_out(kind: Kind) -> None:
    ws = protocol()
    event = ws.receive(
        f'{{"type": "{kind}.create", "id": "é\\"", "resumable": true, "body":  {{"n": [1, 2e5]}}, "x": 1}}'
    )
    assert event == Create('é"', kind, b'{"n": [1, 2e5]}', resumable=True)
    assert ws.open_ids == ('é"',)


def test_null_and_absent_fields_mean_the_same() -> None:
    assert protocol().receive(create(resumable=None, session=None, after=None)) == protocol().receive(create())


def test_cancel_of_an_open_an_ended_and_an_unknown_request() -> None:
    ws = protocol()
    ws.receive(create("a"))
    assert ws.receive('{"type":"chat.cancel","id":"a"}') == Cancel("a")
    ws.end("a")
    assert ws.receive('{"type":"chat.cancel","id":"a"}') is None
    answer = reply(ws.receive('{"type":"completion.cancel","id":"b"}'))
    assert (answer["type"], answer["id"], answer["error"]["code"]) == ("completion.error", "b", "not_found")


def test_a_duplicate_id_is_refused_without_blaming_the_request_that_has_it() -> None:
    ws = protocol()
    ws.receive(create("a"))
    answer = reply(ws.receive(create("a")))
    assert answer["id"] is None
    assert "'a'" in answer["error"]["message"]
    assert ws.open_ids == ("a",)
    ws.end("a")
    assert isinstance(ws.receive(create("a")), Create)


def test_the_number_of_open_requests_is_bounded() -> None:
    ws = protocol(max_requests=2)
    ws.receive(create("a"))
    ws.receive(create("b"))
    answer = reply(ws.receive(create("c")))
    assert answer["id"] == "c"
    assert answer["error"]["type"] == "rate_limit_error"
    resumed = reply(ws.receive('{"type":"chat.resume","id":"d","session":"s0","after":0}'))
    assert resumed["error"]["type"] == "rate_limit_error"
    ws.end("a")
    assert isinstance(ws.receive(create("c")), Create)


def test_resume() -> None:
    ws = protocol()
    event = ws.receive('{"type":"chat.resume","id":"a","session":"s0","after":7}')
    assert event == Resume("a", Kind.CHAT, "s0", 7)
    assert ws.open_ids == ("a",)


@pytest.mark.parametrize(
    "fields", ["", ',"session":"s"', ',"after":1', ',"session":"s","after":-1', ',"session":"","after":1']
)
def test_a_resume_that_lacks_something(fields: str) -> None:
    ws = protocol()
    answer = reply(ws.receive(f'{{"type":"chat.resume","id":"a"{fields}}}'))
    assert answer["id"] == "a"
    assert ws.open_ids == ()


def test_ping_and_pong() -> None:
    assert protocol().receive('{"type":"ping"}') == Reply('{"type":"pong"}')
    assert protocol().receive('{"type":"pong"}') is None


BAD = [
    "",
    "x",
    "{",
    "[]",
    "null",
    "1",
    '"chat.create"',
    "{}",
    '{"type":null}',
    '{"type":"chat.create","id":"a","body":NaN}',
    '{"type":"CHAT.create","id":"a","body":{}}',
    '{"type":"chat.delete","id":"a"}',
    '{"type":"chat","id":"a"}',
    '{"type":"chat.chunk","id":"a"}',
    '{"type":"chat.create","body":{}}',
    '{"type":"chat.create","id":"","body":{}}',
    '{"type":"chat.create","id":7,"body":{}}',
    '{"type":"chat.create","id":null,"body":{}}',
    '{"type":"chat.create","id":"a","body":{},"resumable":"yes"}',
    '{"type":"chat.create","id":"\\ud800","body":{}}',
    json.dumps({"type": "chat.create", "id": "a" * 129, "body": {}}),
    '{"type":"chat.resume","id":"a","session":"s","after":1.5}',
    '{"type":"chat.create","id":"a","body":' + "[" * 1500 + "]" * 1500 + "}",
    b"\x00\x01",
    create().encode(),
]


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_message_gets_an_error_without_id_and_the_socket_goes_on(message: str | bytes) -> None:
    ws = protocol()
    answer = reply(ws.receive(message))
    assert answer["type"].endswith(".error")
    assert answer["id"] is None
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert ws.open_ids == ()
    assert isinstance(ws.receive(create()), Create)


@pytest.mark.parametrize("body", ["[]", "null", "1", '"{"'])
def test_a_body_that_is_no_object(body: str) -> None:
    ws = protocol()
    answer = reply(ws.receive(f'{{"type":"chat.create","id":"a","body":{body}}}'))
    assert (answer["id"], answer["error"]["param"]) == ("a", "body")
    assert ws.open_ids == ()


def test_a_missing_body_is_an_error_of_the_request() -> None:
    assert reply(protocol().receive('{"type":"chat.create","id":"a"}'))["id"] == "a"


def test_an_oversized_message_closes_with_1009_counted_in_bytes() -> None:
    ws = protocol(max_body_bytes=100)
    limit = 100 + ENVELOPE_BYTES
    for text in ("x" * (limit + 1), "é" * (limit // 2 + 1), "😀" * (limit // 4 + 1)):
        event = ws.receive(text)
        assert isinstance(event, Close)
        assert event.code == CloseCode.TOO_BIG
    assert isinstance(ws.receive("é" * (limit // 2)), Reply)


def test_a_body_may_be_as_long_as_over_http_whatever_is_around_it() -> None:
    ws = protocol(max_body_bytes=100)
    ids = ["a" * MAX_ID_CHARS, "b" * MAX_ID_CHARS]
    body = {"prompt": "x" * 86}
    assert len(json.dumps(body)) == 100
    assert isinstance(ws.receive(create(ids[0], body=body)), Create)
    body["prompt"] += "x"
    refused = reply(ws.receive(create(ids[1], body=body)))
    assert (refused["id"], refused["error"]["code"]) == (ids[1], "request_too_large")


def test_a_peer_that_speaks_something_else_is_cut_off() -> None:
    ws = protocol()
    for _ in range(MAX_BAD_FRAMES):
        assert isinstance(ws.receive("?"), Reply)
    event = ws.receive("?")
    assert isinstance(event, Close)
    assert event.code == CloseCode.POLICY


def test_a_good_frame_resets_the_count_of_bad_ones() -> None:
    ws = protocol()
    for _ in range(MAX_BAD_FRAMES):
        ws.receive("?")
    ws.receive('{"type":"ping"}')
    assert isinstance(ws.receive("?"), Reply)


@given(st.text() | st.binary())
def test_no_message_makes_it_raise(message: str | bytes) -> None:
    event = protocol().receive(message)
    assert event is None or isinstance(event, Create | Cancel | Resume | Reply | Close)


def test_frames_of_a_request() -> None:
    frames = RequestFrames(Kind.COMPLETION, 'q"\u2028')
    assert json.loads(frames.chunk(3, '{"x":"é"}'.encode())) == {
        "type": "completion.chunk",
        "id": 'q"\u2028',
        "seq": 3,
        "chunk": {"x": "é"},
    }
    done = json.loads(frames.done(4, "stop", Usage(5, 6, 2)))
    assert done["type"] == "completion.done"
    assert (done["seq"], done["finish_reason"]) == (4, "stop")
    assert done["usage"]["total_tokens"] == 11
    assert done["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    error = json.loads(frames.error(StepError("boom")))
    assert (error["type"], error["error"]["code"]) == ("completion.error", "step_failed")


def test_a_close_reason_is_cut_between_characters() -> None:
    clipped = clip_reason("é" * 100)
    assert clipped == "é" * 61
    assert len(clipped.encode()) <= MAX_REASON_BYTES
