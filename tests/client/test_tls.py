"""https: a server whose certificate is trusted is talked to, any other is not; also while a lease waits for hours."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.cli.lease.door import Door, Exchange
from rota.client import AsyncClient, Client, Unreachable
from tests.client.stub import Asked, Stub, ok, stub

HEALTH = {"status": "ok"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, for the name localhost alone; key and certificate in one file."""
    where = tmp_path_factory.mktemp("tls")
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(where / "key"), "-out", str(where / "crt")]
    subprocess.run([openssl, *words.split(), *names], check=True, capture_output=True)
    both = where / "both.pem"
    both.write_text((where / "key").read_text() + (where / "crt").read_text())
    return both


@pytest.fixture
def granted() -> threading.Event:
    return threading.Event()


@pytest.fixture
def server(certificate: Path, granted: threading.Event) -> Iterator[Stub]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def reply(asked: Asked) -> bytes:
        if asked.target == "/acquire":
            assert granted.wait(60)
            return ok({"job_id": "x", "gpus": "0"})
        return ok(HEALTH)

    with stub(reply, tls=context) as made:
        yield made


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


def test_a_trusted_server_is_talked_to(server: Stub, trusted: None) -> None:
    with Client(server.url, "secret") as client:
        assert [client.health() for _ in range(3)] == [HEALTH] * 3
    assert server.asked[0].headers["x-auth-token"] == "secret"
    assert server.links == 1, "one connection, kept"


def test_so_does_the_asynchronous_client(server: Stub, trusted: None) -> None:
    async def talk() -> object:
        async with AsyncClient(server.url) as client:
            return await client.health()

    assert asyncio.run(talk()) == HEALTH


def test_a_stranger_gets_no_token(server: Stub) -> None:
    with Client(server.url, "secret", tries=1) as client, pytest.raises(Unreachable, match="certificate"):
        client.health()

    async def talk() -> None:
        async with AsyncClient(server.url, "secret", tries=1) as client:
            await client.health()

    with pytest.raises(Unreachable, match="certificate"):
        asyncio.run(talk())
    assert server.asked == []


def test_a_certificate_of_another_name_is_a_strangers(server: Stub, trusted: None) -> None:
    url = server.url.replace("localhost", "127.0.0.1")
    with Client(url, "secret", tries=1) as client, pytest.raises(Unreachable, match="certificate"):
        client.health()
    assert server.asked == []


def test_a_lease_waits_through_what_only_tls_has_to_say(server: Stub, trusted: None, granted: threading.Event) -> None:
    """After the handshake a server sends keys for later connections: the socket is readable, and no answer is there."""
    exchange = Exchange(Door(server.url), "POST", "/acquire", {"pid": 1})
    try:
        assert not exchange.ready(0.5)
        granted.set()
        assert exchange.ready(30.0)
        assert exchange.answer() == (200, {"job_id": "x", "gpus": "0"})
    finally:
        exchange.close()
