"""Taking the port: first, alone, and at once again."""

import socket
import subprocess
import sys

import pytest

from streamgen.errors import ConfigError, PortInUseError
from streamgen.server.listen import listen, url


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def port_of(sockets: list[socket.socket]) -> int:
    return sockets[0].getsockname()[1]


def test_a_free_port_is_found_and_accepts() -> None:
    sockets = listen("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", port_of(sockets)), timeout=5):
            pass
        assert url(sockets, "127.0.0.1") == f"http://127.0.0.1:{port_of(sockets)}"
        assert url(sockets, "0.0.0.0") == f"http://localhost:{port_of(sockets)}"
        assert url(sockets, "::1") == f"http://[::1]:{port_of(sockets)}"
    finally:
        close(sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_G6_a_port_in_use_is_refused_by_name(host: str) -> None:
    sockets = listen("127.0.0.1", 0)
    try:
        with pytest.raises(PortInUseError, match=f"Port {port_of(sockets)} of .* is in use"):
            listen(host, port_of(sockets))
    finally:
        close(sockets)


def test_G6_the_port_can_be_taken_again_at_once() -> None:
    """The side that closes first keeps the connection in TIME_WAIT, which must not keep the port."""
    sockets = listen("127.0.0.1", 0)
    port = port_of(sockets)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        sockets[0].setblocking(True)
        served, _ = sockets[0].accept()
        served.close()
        close(sockets)
        assert client.recv(1) == b""
    close(listen("127.0.0.1", port))


def test_G6_a_child_does_not_keep_the_port() -> None:
    sockets = listen("127.0.0.1", 0)
    port = port_of(sockets)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False, text=True) as child:
        assert child.stdout.readline() == "up\n"
        close(sockets)
        close(listen("127.0.0.1", port))
        child.communicate("\n", timeout=20)


def test_a_failed_start_leaves_no_socket_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two addresses is taken: the first must be free again."""
    taken = listen("127.0.0.2", 0)
    port = port_of(taken)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kwargs: found)
    try:
        with pytest.raises(PortInUseError):
            listen("both", port)
        monkeypatch.undo()
        close(listen("127.0.0.1", port))
    finally:
        close(taken)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 70])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="no address of this machine"):
        listen(host, 0)
