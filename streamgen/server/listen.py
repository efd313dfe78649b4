"""The listening sockets, taken before anything slow begins: who comes second learns it at once."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence

from streamgen.errors import ConfigError, PortInUseError, SetupError

BACKLOG = 2048
_ANY = ("", "0.0.0.0", "::", "*")  # noqa: S104  recognized, not bound


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on each address of `host`; port 0 takes a free one, the same for all of them.

    They are closed in programs that this one starts, and do not wait for the old connections of a server that just
    ended. Raises PortInUseError, ConfigError for a host that is not this machine's, SetupError for the rest.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host):
            sockets.append(_listen(family, address, port if not sockets else sockets[0].getsockname()[1]))
    except BaseException:
        for taken in sockets:
            taken.close()
        raise
    return sockets


def url(sockets: Sequence[socket.socket], host: str) -> str:
    """Where a browser on this machine reaches the sockets."""
    port = sockets[0].getsockname()[1]
    if host in _ANY:
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host in {"", "*"}:
        host = "0.0.0.0"  # noqa: S104  asked for
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error}.") from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    new = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            new.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" takes IPv4 too, as users of containers expect.
            new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address == "::" else 1)
        new.bind((address, port))
        # At once: a second socket can be bound to the address until this one listens.
        new.listen(BACKLOG)
        new.setblocking(False)
    except OSError as error:
        new.close()
        raise _explained(error, address, port) from error
    return new


def _explained(error: OSError, address: str, port: int) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(f"Port {port} of {address} is in use already. Choose another one with --port.")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return SetupError(f"Port {port} of {address} needs rights that this user has not. Choose one above 1023.")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--host {address} is no address of this machine.")
    return SetupError(f"Cannot listen on port {port} of {address}: {error.strerror or error}.")
