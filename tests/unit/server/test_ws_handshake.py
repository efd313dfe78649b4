from __future__ import annotations

import pytest

from streamgen.errors import AuthenticationError, InvalidRequestError
from streamgen.server.ws_handshake import KEY_PREFIX, key_offered, key_protocol, negotiate


def test_the_sub_protocol_must_be_offered() -> None:
    assert negotiate(["x", "streamgen.v1"]) == "streamgen.v1"
    for offered in ([], ["streamgen.v2"], ["Streamgen.v1"], [key_protocol("k")]):
        with pytest.raises(InvalidRequestError):
            negotiate(offered)


@pytest.mark.parametrize("key", ["a", "ab", "abc", "sk-" + "x" * 60, "ključ?/+", "€"])
def test_a_key_survives_the_journey(key: str) -> None:
    protocol = key_protocol(key)
    assert key_offered(["streamgen.v1", protocol]) == key
    # A sub-protocol is a token of RFC 9110: no padding, no slash, no plus.
    assert not set(protocol) & set("=/+ ,")


def test_padding_is_tolerated_and_no_key_is_none() -> None:
    assert key_offered([KEY_PREFIX + "YQ=="]) == "a"
    assert key_offered(["streamgen.v1"]) is None
    assert key_offered([]) is None


@pytest.mark.parametrize("text", ["*", "é", "_w", "a", "a b"])
def test_what_is_not_base64url_of_utf8_is_an_authentication_error(text: str) -> None:
    with pytest.raises(AuthenticationError):
        key_offered([KEY_PREFIX + text])
