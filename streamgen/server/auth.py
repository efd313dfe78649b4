"""Who may use the API: keys, the origins of pages, and the names by which the server is asked for. Pure; HTTP and
WebSocket share it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import TypeAlias
from urllib.parse import urlsplit

from streamgen.errors import AuthenticationError, ConfigError, PermissionDeniedError

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
"""ASGI's: names in lower case."""

KEY_SUBPROTOCOL = "streamgen.key."
"""A browser cannot give a WebSocket an Authorization header: there the key is a sub-protocol, in base64url."""

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico"})
PUBLIC_FOLDER = "/static/"


class KeyRing:
    """Holds digests of the keys, never the keys. Without keys everybody is let in."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Raises ConfigError for a key that no header can carry."""
        if any(not key or not key.isascii() or not key.isprintable() or key != key.strip() for key in keys):
            raise ConfigError("API keys must be printable ASCII, without spaces around them, and not empty.")
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    @property
    def open(self) -> bool:
        return not self._digests

    def tenant(self, key: bytes | None) -> str:
        """A stable name for the holder of `key`, "" without keys. Raises AuthenticationError.

        Digests are compared, in constant time and all of them, so that neither a key's length nor its first
        characters show in the time it takes.
        """
        if not self._digests:
            return ""
        if key is None:
            raise AuthenticationError("An API key is needed: send it as `Authorization: Bearer KEY`.")
        digest = hashlib.sha256(key).digest()
        found = 0
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        if not found:
            raise AuthenticationError("The API key is not valid.")
        return digest.hex()[:16]


def presented_key(headers: Headers) -> bytes | None:
    """The key in `Authorization: Bearer KEY`, else in a WebSocket's sub-protocols; None if there is none, or two."""
    authorization = [value for name, value in headers if name == b"authorization"]
    if authorization:
        scheme, _, key = authorization[0].partition(b" ")
        return key.strip() or None if scheme.lower() == b"bearer" and len(authorization) == 1 else None
    keys = [
        name[len(KEY_SUBPROTOCOL) :]
        for name in offered_subprotocols(headers)
        if name.startswith(KEY_SUBPROTOCOL) and len(name) > len(KEY_SUBPROTOCOL)
    ]
    return _base64url(keys[0]) if len(keys) == 1 else None


def offered_subprotocols(headers: Headers) -> list[str]:
    return [
        offer.strip()
        for name, value in headers
        if name == b"sec-websocket-protocol"
        for offer in value.decode("latin-1").split(",")
    ]


def _base64url(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def check_key(headers: Headers, keys: KeyRing) -> str:
    """The tenant. Raises AuthenticationError."""
    return keys.tenant(presented_key(headers))


class OriginPolicy:
    """Which pages may make a visitor's browser use this server. Programs that are no browser send no Origin.

    `loopback` says that the server listens to this machine only. Its only protection may be that nobody else reaches
    it, and a page from elsewhere that lets its own name resolve to 127.0.0.1 (DNS rebinding) would seem to be of the
    same origin; so there the name must be one of this machine's, or of an origin that is allowed.
    """

    def __init__(self, allowed: Sequence[str], *, loopback: bool) -> None:
        self._any = "*" in allowed
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        self._hosts = frozenset(_host_name(origin.partition("://")[2]) for origin in self._allowed) - {""}
        self._loopback = loopback

    def knows_host(self, headers: Headers) -> bool:
        """Whether the server may be asked for by the name in Host. A browser always sends one, and sends no Origin
        with a GET to what it takes for the page's own server, which leaves the name alone to tell rebinding by.
        """
        if not self._loopback or self._any:
            return True
        names = [_host_name(value.decode("latin-1").lower()) for name, value in headers if name == b"host"]
        return all(is_loopback(name) or name in self._hosts for name in names)

    def allows(self, headers: Headers) -> bool:
        fields = {name: value.decode("latin-1") for name, value in headers}
        origin = fields.get(b"origin")
        if origin is None or self._any or origin.lower() in self._allowed:
            return True
        # Scripts cannot set this header, and browsers send it only over TLS or to this machine by its own name:
        # it also vouches for a page behind a proxy that has rewritten Host.
        if fields.get(b"sec-fetch-site") == "same-origin":
            return True
        try:
            parts = urlsplit(origin.lower())
            same = bool(parts.netloc) and parts.netloc == fields.get(b"host", "").lower()
            return same and (not self._loopback or is_loopback(parts.hostname or ""))
        except ValueError:
            return False


def check_origin(headers: Headers, origins: OriginPolicy) -> None:
    """Raises PermissionDeniedError."""
    if not origins.allows(headers):
        raise PermissionDeniedError(
            "Pages of this origin may not use this server; its operator can let them with --allowed-origins."
        )


def check_host(headers: Headers, origins: OriginPolicy) -> None:
    """Raises PermissionDeniedError."""
    if not origins.knows_host(headers):
        raise PermissionDeniedError(
            "This server is its own machine's only, and the request's Host is none of that machine's names; if it is "
            "a proxy's, the server's operator can let it with --allowed-origins."
        )


def _host_name(authority: str) -> str:
    """The name in `name:port`, without the dot that may end it; "" if it is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_public(method: str, path: str, *, public_metrics: bool) -> bool:
    """Whether a request needs no key. Whatever is not listed here needs one: paths are compared as they are."""
    if method not in ("GET", "HEAD"):
        return False
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER) or (public_metrics and path == "/metrics")
