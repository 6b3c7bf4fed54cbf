"""Who is admitted, and what strangers are told."""

import socket
from collections.abc import Callable

import pytest
from fake_peers import Listener, wait_for_end
from peer_loads import NODE, PAGES, load, soon
from peer_nodes import FORMAT, KEY, InterruptedArena, content_of, write
from served_connections import served_connections, wait_for

from generator.peers.handshake import PeerKey, Side
from generator.peers.page_client import PeerPages
from generator.peers.page_server import PageServer
from generator.peers.stream import Stream
from generator.peers.wire import (
    ADMISSIONS,
    INTRODUCTIONS,
    OPENINGS,
    Greeting,
    Introduction,
    PeerUnreachable,
    Reason,
    Refusal,
    Welcome,
    host_and_port,
    joined,
)
from protocol.errors import ConfigError


def refusal_of(client: PeerPages, address: str) -> PeerUnreachable:
    with pytest.raises(PeerUnreachable) as refused:
        load(client, address)
    return refused.value


def stranger(address: str) -> socket.socket:
    host, port = host_and_port(address)
    return socket.create_connection((host, port), timeout=10)


def test_a_client_with_another_key_is_denied(server: PageServer, connect: Callable[..., PeerPages]) -> None:
    refusal = refusal_of(connect(key=KEY + "."), server.address)
    assert refusal.reason is Reason.DENIED
    assert str(refusal) == f"{server.address} does not accept this key"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "others"}, "has KV of another model"),
        ({"page_bytes": 10}, "has pages of 5000 bytes, this one of 10"),
        ({"rank": 1}, "is rank 0, this one is rank 1"),
    ],
)
def test_a_client_with_another_format_is_told_what_differs(
    server: PageServer, connect: Callable[..., PeerPages], changes: dict[str, object], words: str
) -> None:
    refusal = refusal_of(connect(**changes), server.address)
    assert refusal.reason is Reason.INCOMPATIBLE
    assert str(refusal) == f"{server.address} {words}"
    # The error refers to all that was used, so nothing is closed just because it is forgotten.
    wait_for(lambda: served_connections() == 0)


def test_a_server_of_another_version_is_incompatible(client: PeerPages, listen: Callable[[Listener], Listener]) -> None:
    def greet(connected: socket.socket) -> None:
        Stream(connected, "client").send_message(Greeting(2, bytes(32)), soon())
        wait_for_end(connected)

    listener = listen(Listener(greet))
    refusal = refusal_of(client, listener.address)
    assert refusal.reason is Reason.INCOMPATIBLE
    assert str(refusal) == f"{listener.address} speaks version 2, this one 1"


def test_a_client_of_another_version_is_refused(server: PageServer) -> None:
    with stranger(server.address) as connected:
        stream = Stream(connected, "server")
        greeting = stream.receive_message(OPENINGS, soon())
        assert isinstance(greeting, Greeting)
        proof = PeerKey(KEY).proof(Side.CLIENT, (greeting.nonce, bytes(32)))
        stream.send_message(Introduction(2, bytes(32), proof), soon())
        assert stream.receive_message(ADMISSIONS, soon()) == Refusal(Reason.INCOMPATIBLE)
        assert connected.recv(1) == b""


def test_a_server_that_sends_the_clients_proof_back_is_denied(
    client: PeerPages, listen: Callable[[Listener], Listener]
) -> None:
    def reflect(connected: socket.socket) -> None:
        stream = Stream(connected, "client")
        stream.send_message(Greeting(1, bytes(32)), soon())
        introduction = stream.receive_message(INTRODUCTIONS, soon())
        stream.send_message(Welcome(introduction.proof, FORMAT), soon())
        wait_for_end(connected)

    listener = listen(Listener(reflect))
    refusal = refusal_of(client, listener.address)
    assert refusal.reason is Reason.DENIED
    assert str(refusal) == f"{listener.address} does not know the key"


def test_a_server_whose_format_was_changed_on_the_way_is_denied(
    client: PeerPages, listen: Callable[[Listener], Listener]
) -> None:
    def mislead(connected: socket.socket) -> None:
        stream, nonce = Stream(connected, "client"), bytes(32)
        stream.send_message(Greeting(1, nonce), soon())
        introduction = stream.receive_message(INTRODUCTIONS, soon())
        proof = PeerKey(KEY).proof(Side.SERVER, (nonce, introduction.nonce), b"another format")
        stream.send_message(Welcome(proof, FORMAT), soon())
        wait_for_end(connected)

    assert refusal_of(client, listen(Listener(mislead)).address).reason is Reason.DENIED


def test_a_recorded_introduction_is_denied(server: PageServer) -> None:
    key, recorded = PeerKey(KEY), None
    for expected in (Welcome, Refusal):
        with stranger(server.address) as connected:
            stream = Stream(connected, "server")
            greeting = stream.receive_message(OPENINGS, soon())
            assert isinstance(greeting, Greeting)
            proof = key.proof(Side.CLIENT, (greeting.nonce, bytes(32)))
            recorded = recorded or Introduction(1, bytes(32), proof)
            stream.send_message(recorded, soon())
            assert isinstance(stream.receive_message(ADMISSIONS, soon()), expected)


def test_a_stranger_learns_nothing_of_the_server_but_its_version(
    arena: InterruptedArena, server: PageServer, connect: Callable[..., PeerPages]
) -> None:
    write(arena, NODE, PAGES)
    with stranger(server.address) as connected:
        stream = Stream(connected, "server")
        greeting = stream.receive_message(OPENINGS, soon())
        assert isinstance(greeting, Greeting)
        proof = PeerKey("another key, not theirs").proof(Side.CLIENT, (greeting.nonce, bytes(32)))
        stream.send_message(Introduction(1, bytes(32), proof), soon())
        assert stream.receive_message(ADMISSIONS, soon()) == Refusal(Reason.DENIED)
        assert connected.recv(1) == b""


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_9.9\r\n", b"\0\0\0\0", b"\0\0\0\1\xc1", b"\0\0\0\2\x81\xa1"])
def test_another_kind_of_server_is_incompatible(
    client: PeerPages, listen: Callable[[Listener], Listener], says: bytes
) -> None:
    def speak(connected: socket.socket) -> None:
        connected.sendall(says)
        wait_for_end(connected)

    assert refusal_of(client, listen(Listener(speak)).address).reason is Reason.INCOMPATIBLE


def test_a_key_needs_16_characters(serve: Callable[..., PageServer], connect: Callable[..., PeerPages]) -> None:
    for make in (serve, connect):
        with pytest.raises(ConfigError, match="at least 16 characters"):
            make(key="k" * 15)
    server, client = serve(key="ключ" * 4), connect(key="ключ" * 4)
    assert refusal_free(client, server.address)


def refusal_free(client: PeerPages, address: str) -> bool:
    """Whether the client is admitted, and told that there is no such node."""
    try:
        load(client, address)
    except Exception as error:
        return not isinstance(error, PeerUnreachable)
    return False


def test_proofs_depend_on_all_that_they_cover() -> None:
    key, nonces = PeerKey(KEY), (b"a" * 32, b"b" * 32)
    proof = key.proof(Side.SERVER, nonces, b"said")
    assert key.proves(proof, Side.SERVER, nonces, b"said")
    assert not PeerKey(KEY + ".").proves(proof, Side.SERVER, nonces, b"said")
    assert not key.proves(proof, Side.CLIENT, nonces, b"said")
    assert not key.proves(proof, Side.SERVER, nonces[::-1], b"said")
    assert not key.proves(proof, Side.SERVER, nonces, b"other")
    assert not key.proves(b"", Side.SERVER, nonces, b"said")


def test_an_address_is_a_host_and_a_port() -> None:
    for host, port, address in (("10.0.0.1", 80, "10.0.0.1:80"), ("::1", 65535, "[::1]:65535")):
        assert joined(host, port) == address
        assert host_and_port(address) == (host, port)
    for wrong in ("", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x"):
        with pytest.raises(ValueError, match="is not host:port"):
            host_and_port(wrong)


def test_a_server_listens_on_ipv6(serve: Callable[..., PageServer], arena: InterruptedArena, client: PeerPages) -> None:
    write(arena, NODE, PAGES)
    server = serve(host="::1")
    assert server.address.startswith("[::1]:")
    assert (load(client, server.address) == content_of(NODE)).all()


def test_a_host_name_leads_to_each_of_its_addresses(
    server: PageServer, arena: InterruptedArena, client: PeerPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(arena, NODE, PAGES)
    _, port = host_and_port(server.address)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert (load(client, f"machine:{port}") == content_of(NODE)).all()


def test_a_server_that_cannot_listen_is_a_configuration_error(
    server: PageServer, serve: Callable[..., PageServer]
) -> None:
    _, taken = host_and_port(server.address)
    for place in ({"port": taken}, {"host": "192.0.2.1"}, {"port": 1 << 16}):
        with pytest.raises(ConfigError, match="cannot listen on"):
            serve(**place)
