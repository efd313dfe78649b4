"""What a client offers when it asks for a WebSocket: sub-protocols, and a key among them. Pure.

A browser can set no Authorization header on a WebSocket, so its key may travel as a second sub-protocol,
`streamgen.key.` + base64url of the key without padding. The server never selects that one, so it is not echoed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from streamgen.errors import AuthenticationError, InvalidRequestError
from streamgen.server.ws_protocol import SUBPROTOCOL

KEY_PREFIX = "streamgen.key."


def negotiate(offered: Sequence[str]) -> str:
    """The sub-protocol to speak. Raises InvalidRequestError if the client does not offer it."""
    if SUBPROTOCOL not in offered:
        raise InvalidRequestError(f"Offer the WebSocket sub-protocol {SUBPROTOCOL!r} (Sec-WebSocket-Protocol).")
    return SUBPROTOCOL


def key_offered(offered: Sequence[str]) -> str | None:
    """The key among the sub-protocols, or None. Raises AuthenticationError for one that is not base64url of UTF-8."""
    for protocol in offered:
        if protocol.startswith(KEY_PREFIX):
            return _decode(protocol.removeprefix(KEY_PREFIX))
    return None


def bearer_key(authorization: str) -> str:
    """The key of an Authorization header. Raises AuthenticationError for another scheme."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise AuthenticationError("The Authorization header must be 'Bearer' and a key.")
    return key.strip()


def key_protocol(key: str) -> str:
    """The sub-protocol that carries `key`."""
    return KEY_PREFIX + base64.urlsafe_b64encode(key.encode()).rstrip(b"=").decode()


def _decode(text: str) -> str:
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise AuthenticationError(f"The key behind {KEY_PREFIX!r} is not base64url.") from None
