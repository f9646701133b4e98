"""Calls over real sockets: one logic, two clients, and a server that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.client import (
    AsyncClient,
    BadAnswer,
    Busy,
    Client,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    RotaError,
    Unauthorised,
    Unreachable,
    address,
)
from rota.client.address import Address, find_token, find_url
from tests.client.stub import DROP, Asked, closed_port, ok, stub

RUN = {"id": "0123456789ab", "name": "train", "status": "queued", "gpu_count": 2, "from_the_future": [1]}


def ask(url: str, how: str, method: str, *args: Any, **named: Any) -> Any:
    """The same call by either client."""
    options = {"backoff_s": 0.01, "connect_s": 10.0, **named.pop("options", {})}
    if how == "sync":
        with Client(url, "secret", **options) as client:
            return getattr(client, method)(*args, **named)

    async def run() -> Any:
        async with AsyncClient(url, "secret", **options) as client:
            return await getattr(client, method)(*args, **named)

    return asyncio.run(run())


both = pytest.mark.parametrize("how", ["sync", "async"])


@both
def test_a_field_the_server_does_not_know_is_told_or_refused(how):
    with stub(lambda asked: ok({**RUN, "ignored": ["gpus: did you mean gpu_count?"]})) as server:
        assert ask(server.url, how, "submit", "true").ignored == ("gpus: did you mean gpu_count?",)
        ask(server.url, how, "submit", "true", strict=True)
        ask(server.url, how, "rerun", "0123456789ab", strict=True, dry_run=True)
        sweep = ask(server.url, how, "create_sweep", "s", "true", {}, strict=True)
    assert sweep.ignored == ("gpus: did you mean gpu_count?",)
    assert [asked.target for asked in server.asked] == [
        "/runs",
        "/runs?strict=true",
        "/runs/0123456789ab/rerun?dry_run=true&strict=true",
        "/sweeps?strict=true",
    ]
    assert ask_ok(how).ignored == ()


def ask_ok(how: str) -> Any:
    with stub(lambda asked: ok(RUN)) as server:
        return ask(server.url, how, "submit", "true")


@both
def test_a_submit_says_what_is_wanted_and_gets_a_run(how):
    with stub(lambda asked: ok(RUN)) as server:
        run = ask(server.url, how, "submit", ["python", "train.py"], gpus=2, name="train", priority=3)
    (asked,) = server.asked
    assert (asked.method, asked.target) == ("POST", "/runs")
    assert asked.headers["x-auth-token"] == "secret"
    assert asked.headers["host"] == server.url.removeprefix("http://")
    assert len(asked.headers["idempotency-key"]) == 32
    sent = asked.json
    assert sent.pop("env")["PATH"] == os.environ["PATH"]
    assert sent == {
        "auto_start": True,
        "argv": ["python", "train.py"],
        "name": "train",
        "gpu_count": 2,
        "priority": 3,
        "workdir": os.getcwd(),
    }
    assert (run.id, run.gpu_count, run.waiting) == ("0123456789ab", 2, True)
    assert run.extra == {"from_the_future": [1]}, "an older client keeps what a newer server says"
    assert run.raw["from_the_future"] == [1]


@both
def test_answers_that_get_lost_make_one_run(how):
    """The server does the work and drops the answer, twice. The client repeats itself with the same key."""
    made: dict[str, str] = {}

    def reply(asked: Asked) -> bytes | None:
        key = asked.headers["idempotency-key"]
        made.setdefault(key, f"{len(made):012x}")
        return DROP if asked.number < 3 else ok({**RUN, "id": made[key]})

    with stub(reply) as server:
        run = ask(server.url, how, "submit", "true")
    assert len(server.asked) == 3
    assert list(made.values()) == [run.id], "one key, so one run"


@both
def test_what_may_have_arrived_is_not_repeated_without_a_key(how):
    with stub(lambda asked: DROP) as server, pytest.raises(Unreachable) as caught:
        ask(server.url, how, "hold", "0123456789ab")
    assert caught.value.sent and len(server.asked) == 1


@both
def test_a_busy_server_is_asked_again_and_then_believed(how):
    def reply(asked: Asked) -> bytes:
        return ok({"detail": "slowly"}, "503 Busy", Retry_After="0") if asked.number < 3 else ok(RUN)

    with stub(reply) as server:
        assert ask(server.url, how, "run", RUN["id"]).id == RUN["id"]
    assert len(server.asked) == 3
    with (
        stub(lambda asked: ok({"detail": "too many"}, "429 Too Many")) as server,
        pytest.raises(Busy, match="too many"),
    ):
        ask(server.url, how, "run", RUN["id"])
    assert len(server.asked) == 4


def test_retry_after_is_honoured_and_bounded():
    with Client("http://127.0.0.1:1") as client:
        assert 2.0 <= client._talk.pause_s(1, Busy(429, "x", retry_after_s=2.0)) <= 2.4
        assert client._talk.pause_s(1, Busy(429, "x", retry_after_s=86400.0)) == 30.0
        pauses = [client._talk.pause_s(n, Unreachable("x")) for n in range(1, 6)]
    assert all(0.05 * 2**n <= pause <= 0.15 * 2**n for n, pause in enumerate(pauses))


@both
@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        ("401 No", {"detail": "Unauthorized - invalid or missing X-Auth-Token"}, Unauthorised, "invalid or missing"),
        ("403 No", {"detail": "ann may not"}, Forbidden, "ann may not"),
        ("404 No", {"detail": "Run not found"}, NotFound, "Run not found"),
        ("409 No", {"detail": "it has ended"}, Conflict, "it has ended"),
        ("400 No", {"detail": "Run is not ready (status: running)"}, Refused, "not ready"),
        ("400 No", {"error": "negative"}, Refused, "negative"),
        ("500 No", "what", Refused, "answered 500"),
        ("418 No", {"detail": "line\nbreak\x1b[2J"}, Refused, "line break�"),
        ("422 No", {"detail": [{"loc": ["body", "gpu_count"], "msg": "too many"}]}, Refused, "^gpu_count: too many"),
        ("422 No", {"detail": [{"loc": ["query", "x", 0], "msg": "no"}, 7]}, Refused, "^x.0: no"),
        ("422 No", {"detail": []}, Refused, "answered 422"),
        ("422 No", {"detail": [3]}, Refused, "answered 422"),
    ],
)
def test_refusals_by_their_kind(how, status, body, kind, said):
    with stub(lambda asked: ok(body, status)) as server, pytest.raises(kind, match=said) as caught:
        ask(server.url, how, "explain", RUN["id"])
    assert type(caught.value) is kind
    assert caught.value.status == int(status[:3])
    assert len(server.asked) == 1


@both
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xff",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + b'{"id":7}',
        b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
        ok({"id": "x", "gpu_count": "many"}),
        ok({"id": "x", "reasons": 5}),
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20000,
        b"220 mail.example.org ESMTP\r\n",
    ],
)
def test_an_answer_that_is_not_ours(how, answer):
    with stub(lambda asked: answer) as server, pytest.raises(BadAnswer):
        ask(server.url, how, "run", RUN["id"])


@both
def test_nobody_there(how, tmp_path):
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(Unreachable, match="no server answers at") as caught:
        ask(url, how, "queue")
    assert not caught.value.sent
    with pytest.raises(Unreachable, match="no such file"):
        ask(f"unix://{tmp_path}/none.sock", how, "queue")


@both
def test_a_server_that_comes_up_late_is_found(how, tmp_path):
    path = tmp_path / "late.sock"
    with stub(lambda asked: ok({"status": "ok"})) as server:
        threading.Timer(0.3, lambda: os.symlink(server_socket, path)).start()
        with stub(lambda asked: ok({"status": "ok"}), tmp_path / "real.sock") as real:
            server_socket = real.url.removeprefix("unix://")
            answer = ask(f"unix://{path}", how, "health", options={"backoff_s": 0.2, "tries": 8})
        assert answer["status"] == "ok" and not server.asked


@both
def test_a_server_that_never_answers(how):
    released = threading.Event()

    def reply(asked: Asked) -> None:
        released.wait(60)

    with stub(reply) as server, pytest.raises(Unreachable, match="no answer in time"):
        ask(server.url, how, "run", "x", options={"answer_s": 0.2, "tries": 1})
    released.set()


@both
def test_a_server_that_drips_is_not_waited_for_for_ever(how):
    def reply(asked: Asked) -> Any:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
        while not gone.wait(0.05):
            yield b"x"

    gone = threading.Event()
    with stub(reply) as server, pytest.raises(Unreachable):
        ask(server.url, how, "run", "x", options={"answer_s": 0.5, "tries": 1})
    gone.set()


@both
def test_over_a_unix_socket(how, tmp_path: Path):
    with stub(lambda asked: ok({"name": "ann", "role": "user"}), tmp_path / "rota.sock") as server:
        me = ask(server.url, how, "whoami")
    assert (me.name, me.role) == ("ann", "user")
    assert server.asked[0].headers["host"] == "localhost"


def test_a_connection_is_used_again():
    with stub(lambda asked: ok(RUN)) as server, Client(server.url) as client:
        for _ in range(20):
            client.run("0123456789ab")
        assert server.links == 1


def test_an_idle_connection_that_was_closed_is_noticed_before_it_is_used():
    def reply(asked: Asked) -> bytes:
        return ok(RUN).replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)

    with stub(reply) as server, Client(server.url, tries=1) as client:
        client.run("0123456789ab")
        for link in list(server._open):
            link.shutdown(2)
        client.hold("0123456789ab")  # may not be repeated, so it must not be sent into a dead connection
        assert server.links == 2


def test_threads_share_a_client():
    with stub(lambda asked: ok({**RUN, "name": asked.target})) as server, Client(server.url) as client:
        wrong = []

        def work(number: int) -> None:
            for _ in range(20):
                run = client.run(f"run{number}")
                if run.name != f"/runs/run{number}":
                    wrong.append(run.name)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(server.asked) == 160 and not wrong


def test_a_call_that_outlives_its_client_leaves_no_connection_open(tmp_path):
    """As a screen that is left while a thread of it still asks the server."""
    begun, go_on = threading.Event(), threading.Event()

    def reply(asked: Asked) -> bytes:
        begun.set()
        assert go_on.wait(60)
        return ok({})

    with stub(reply, tmp_path / "rota.sock") as server:
        client = Client(server.url)
        asking = threading.Thread(target=client.health)
        asking.start()
        assert begun.wait(60)
        client.close()
        go_on.set()
        asking.join(60)
        assert not asking.is_alive()
        assert not client._talk._idle, "nobody would close it any more"


def test_tasks_share_a_client():
    async def main(url: str) -> list[str]:
        async with AsyncClient(url) as client:
            found = await asyncio.gather(*(client.run(f"run{n}") for n in range(40)))
            return [run.name for run in found]

    with stub(lambda asked: ok({**RUN, "name": asked.target})) as server:
        names = asyncio.run(main(server.url))
    assert names == [f"/runs/run{n}" for n in range(40)]


def test_a_task_that_is_cancelled_gives_its_connection_up():
    released = threading.Event()

    def reply(asked: Asked) -> bytes | None:
        if asked.target == "/runs/slow":
            released.wait(60)
            return None
        return ok(RUN)

    async def main(url: str) -> str:
        async with AsyncClient(url) as client:
            slow = asyncio.ensure_future(client.run("slow"))
            await asyncio.sleep(0.1)
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            return (await client.run("quick")).id

    with stub(reply) as server:
        assert asyncio.run(main(server.url)) == RUN["id"]
        released.set()


@both
def test_pages_are_turned_by_cursor(how):
    def reply(asked: Asked) -> bytes:
        if "cursor" not in asked.target:
            return ok([{"id": "a"}, {"id": "b"}], X_Next_Cursor="c1")
        return ok([{"id": "c"}])

    async def collect(url: str) -> list[str]:
        async with AsyncClient(url) as client:
            return [run.id async for run in client.runs(status="failed", user="ann")]

    with stub(reply) as server:
        if how == "sync":
            with Client(server.url) as client:
                assert [run.id for run in client.runs(status="failed", user="ann")] == ["a", "b", "c"]
        else:
            assert asyncio.run(collect(server.url)) == ["a", "b", "c"]
    assert server.asked[0].target == "/runs?status=failed&user=ann&archived=false&limit=200"
    assert "cursor=c1" in server.asked[1].target


def test_no_more_is_read_than_was_asked_for():
    with stub(lambda asked: ok([{"id": "a"}], X_Next_Cursor="more")) as server, Client(server.url) as client:
        assert len(list(client.runs(limit=3))) == 3
    assert server.asked[0].target.endswith("limit=3")


def test_every_call_has_the_same_name_in_both_clients():
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public == {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert {"submit", "follow", "wait", "events", "tokens", "capacity", "set_policy", "start_sweep"} <= public


def test_the_package_offers_both_by_name():
    assert rota.Client is Client and rota.AsyncClient is AsyncClient
    with pytest.raises(AttributeError):
        rota.Nothing  # type: ignore[attr-defined]  # noqa: B018


# -- where the server is ----------------------------------------------------------------------------------------------


def test_addresses():
    address = Address("https://rota.example.org/team/")
    assert (address.host, address.port, address.tls, address.prefix) == ("rota.example.org", 443, True, "/team")
    assert address.authority == "rota.example.org"
    assert Address("http://[::1]:10000").authority == "[::1]:10000"
    assert Address("unix:///run/rota.sock").socket == "/run/rota.sock"


@pytest.mark.parametrize(
    "url", ["", "localhost:10000", "ftp://x", "http://", "http://a b", "http://h:0", "http://h:99999", "unix://rel",
            "http://user:pw@h", "http://h/?q", "http://h\r\nX: y"]
)  # fmt: skip
def test_what_is_no_address(url):
    with pytest.raises(RotaError):
        Address(url)


def test_the_server_is_found_in_this_order(tmp_path, monkeypatch):
    """Sockets go before the port: nobody but their server can have made them."""
    env = {"HOME": str(tmp_path), "ROTA_DATA_DIR": str(tmp_path / "data")}
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(address, "SYSTEM_SOCKET", str(tmp_path / "system.sock"))
    assert find_url(env) == ("http://127.0.0.1:10000", "default")
    with (
        stub(lambda asked: ok({}), tmp_path / "system.sock") as machines,
        stub(lambda asked: ok({}), tmp_path / "data" / "rota.sock") as server,
    ):
        assert find_url({**env, "ROTA_DATA_DIR": str(tmp_path)})[0] == machines.url, "this machine's own server"
        assert find_url(env)[0] == server.url
        assert find_url({**env, "RESEARCH_AGENT_SERVER_URL": "http://b"})[0] == "http://b"
        assert find_url({**env, "ROTA_URL": "http://a", "RESEARCH_AGENT_SERVER_URL": "http://b"}) == (
            "http://a",
            "ROTA_URL",
        )


def test_the_token_is_found_in_this_order_and_a_public_one_is_refused(tmp_path):
    env = {"HOME": str(tmp_path)}
    assert find_token({}) == ("", "none")
    assert find_token(env) == ("", "none")
    file = tmp_path / ".config" / "rota" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("rota_abc\n")
    file.chmod(0o644)
    with pytest.raises(RotaError, match="chmod 600"):
        find_token(env)
    file.chmod(0o600)
    assert find_token(env) == ("rota_abc", str(file))
    assert find_token({**env, "ROTA_TOKEN": "x"}) == ("x", "ROTA_TOKEN")
    assert find_token({**env, "RESEARCH_AGENT_USER_AUTH_TOKEN": "y"})[0] == "y"
    file.write_bytes(b"\xff\0bad")
    with pytest.raises(RotaError, match="holds no token"):
        find_token(env)


def test_a_token_cannot_break_out_of_its_header():
    with pytest.raises(RotaError, match="no token has"):
        Client("http://127.0.0.1:1", "a\r\nX-Evil: 1")
