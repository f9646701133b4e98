"""What stands before every route, called as a server would, around an app that only says how long the body was."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from rota.api.bodies import SMALL_BODY
from rota.api.guard import (
    HEADERS,
    HOSTS_REMEMBERED,
    LONGEST_HOST,
    MAX_BODY,
    MAX_MEMBERS,
    Guard,
    _Headers,
    is_open,
)
from rota.api.house import CALLS_AT_ONCE, CALLS_PER_S, House
from rota.api.limits import Buckets
from tests.api.kit import HERE, Answer, call, echo, gate_of, issue, serving

SESAME = {"x-auth-token": "open sesame"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def guard(shared: House) -> Guard:
    return Guard(echo, shared)


def own_address() -> str:
    """An address of this machine that is not of its loopback; that one where there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        try:
            link.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return HERE
        return str(link.getsockname()[0])


def _app(house: House) -> Any:
    from rota.api.server import make_app

    return make_app(house)


def with_settings(house: House, **changes: Any) -> House:
    return replace(house, settings=replace(house.settings, **changes))


class TestHost:
    OURS = (
        "127.0.0.1:10000",
        "127.0.0.1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:10000",
        "[::1]",
        "10.1.2.3:80",
        "0.0.0.0:9",
        "[fe80::1%eth0]:10000",
        "[fe80::1%25eth0]",
    )
    FOREIGN = (
        "evil.example", "evil.example:10000", "127.0.0.1.nip.io", "localhost.evil.example", "evil.example:127.0.0.1",
        "localhost:evil.example", "evil.example#localhost", "localhost@evil.example", "127.1", "2130706433", "0x7f.1",
        "localhost.", ":10000", "::1", "a" * 5000, "\ud83d".encode("utf-8", "replace").decode(),
        "127.0.0.1:10000, evil", "fe80::1%evil.example", "[fe80::1%evil.example]:10000", "[fe80::1%]", "[127.0.0.1",
        "127.0.0.1]", "[[::1]]",
    )  # fmt: skip

    @pytest.mark.parametrize("host", OURS)
    def test_our_names(self, guard: Guard, host: str) -> None:
        assert call(guard, headers={"host": host, **SESAME}).status == 200

    def test_what_is_remembered_of_them_is_bounded(self, guard: Guard) -> None:
        assert call(guard, headers={"host": "127.0.0.1:" + "1" * 5000, **SESAME}).status == 200
        for port in range(HOSTS_REMEMBERED + 50):
            assert call(guard, headers={"host": f"127.0.0.1:{port}", **SESAME}).status == 200
        assert len(guard._known_hosts) == HOSTS_REMEMBERED
        assert max(map(len, guard._known_hosts)) <= LONGEST_HOST

    @pytest.mark.parametrize("host", FOREIGN)
    def test_names_that_were_made_to_point_here(self, guard: Guard, host: str) -> None:
        for path in ("/runs", "/", "/docs", "/static/x.css", "/login", "/nowhere"):
            answer = call(guard, path, headers={"host": host, **SESAME})
            assert answer.status == 421
            assert len(answer.body) < 500
            assert "rota.who" not in answer.scope

    @pytest.mark.parametrize("first", [b"evil.example", b""])
    def test_two_names_are_none(self, shared: House, first: bytes) -> None:
        headers = [(b"host", first), (b"host", b"127.0.0.1"), (b"x-auth-token", b"open sesame")]
        scope = {"type": "http", "method": "GET", "path": "/runs", "query_string": b"", "client": ("127.0.0.1", 1)}
        turned = Guard(echo, shared)._examine({**scope, "headers": headers}, _Headers(headers))
        assert turned is not None and turned.status == 421

    def test_two_origins_are_another_one(self, shared: House) -> None:
        """No browser sends two; which of them a proxy before us went by is not known."""
        for pair in ((b"http://evil.example", b"http://127.0.0.1"), (b"http://127.0.0.1", b"http://127.0.0.1")):
            headers = [(b"host", b"127.0.0.1"), (b"x-auth-token", b"open sesame"), *((b"origin", one) for one in pair)]
            scope = {"type": "http", "method": "GET", "path": "/runs", "query_string": b"", "client": ("127.0.0.1", 1)}
            turned = Guard(echo, shared)._examine({**scope, "headers": headers}, _Headers(headers))
            assert turned is not None and turned.status == 403

    def test_no_name_at_all(self, guard: Guard) -> None:
        assert call(guard, headers={"host": "-", **SESAME}).status == 421
        assert call(guard, headers={"host": "", **SESAME}).status == 421

    def test_this_machine_and_what_the_settings_name(self, shared: House) -> None:
        told = with_settings(
            shared, allowed_hosts=("gpu.lab",), server_url="https://rota.example:8443/x", host="10.9.8.7"
        )
        guard = Guard(echo, told)
        for host in ("gpu.lab:10000", "GPU.lab", "rota.example", "rota.example:8443", socket.gethostname()):
            assert call(guard, headers={"host": host, **SESAME}).status == 200, host
        assert call(guard, headers={"host": "x.gpu.lab", **SESAME}).status == 421

    def test_who_could_not_be_looked_at_is_asked_to_come_again(self, guard: Guard) -> None:
        """Not to log in: nothing is wrong with who asks, and a client that waits comes again by itself."""
        answer = call(guard, client="unseen=0")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "try again, or show a token" in answer.json["detail"]
        assert call(guard, headers=SESAME, client="unseen=0").status == 200
        assert call(guard, headers={"x-auth-token": "wrong"}, client="unseen=0").status == 401
        assert call(guard, "/health", client="unseen=0").status == 200
        assert call(guard, client="job=0").status == 401

    def test_on_the_unix_socket_there_is_no_name_to_rebind(self, guard: Guard) -> None:
        answer = call(guard, headers={"host": "evil.example"}, client="uid=0")
        assert answer.status == 200
        assert answer.scope["rota.by"] == "socket"

    def test_nobody_becomes_a_peer_by_calling_itself_so(self, guard: Guard) -> None:
        for client in ("uid=0x", "uid=", "uid=-1", "uid=0\n", " uid=0", "uid=99999999999", "job=0"):
            assert call(guard, client=client).status == 401

    def test_a_job_at_the_socket_has_no_name_to_rebind_but_needs_a_token(self, guard: Guard) -> None:
        assert call(guard, headers={"host": "x"}, client="job=0").status == 401
        answer = call(guard, headers={"host": "x", **SESAME}, client="job=0")
        assert (answer.status, answer.scope["rota.by"]) == (200, "shared")


class TestPages:
    """Requests that a browser makes for a page of somebody else."""

    ORIGINS = (
        "http://evil.example", "https://evil.example:10000", "null", "", "http://127.0.0.1:10001", "http://127.0.0.1",
        "http://localhost:10000", "file://", "http://127.0.0.1:10000.evil.example", "http://127.0.0.1:10000@evil.example",
        "127.0.0.1:10000", "chrome-extension://abcdef", "http://127.0.0.1:10000 http://evil.example",
        "file://127.0.0.1:10000", "x://127.0.0.1:10000", "://127.0.0.1:10000",
    )  # fmt: skip

    @pytest.mark.parametrize("origin", ORIGINS)
    def test_another_origin_is_refused_whatever_it_brings(self, guard: Guard, origin: str) -> None:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            assert call(guard, method=method, headers={"origin": origin, **SESAME}).status == 403

    def test_our_own_page_may_call(self, guard: Guard) -> None:
        for method in ("GET", "POST"):
            assert call(guard, method=method, headers={"origin": "http://127.0.0.1:10000", **SESAME}).status == 200

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_what_a_page_loads_without_naming_itself(self, guard: Guard, site: str) -> None:
        """An <img>, a <script>, a form of a browser that sends no Origin: refused. A link that is followed: let in."""
        for mode in ("no-cors", "cors", "websocket", ""):
            assert call(guard, headers={"sec-fetch-site": site, "sec-fetch-mode": mode, **SESAME}).status == 403
        link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", **SESAME}
        assert call(guard, headers=link).status == 200
        assert call(guard, method="POST", headers=link).status == 403, "a form that is sent is no link"

    def test_the_address_bar_and_our_own_page(self, guard: Guard) -> None:
        for site in ("none", "same-origin"):
            assert call(guard, headers={"sec-fetch-site": site, "sec-fetch-mode": "cors", **SESAME}).status == 200

    def test_a_websocket_of_another_page_is_refused_at_the_handshake(self, guard: Guard) -> None:
        for origin in self.ORIGINS:
            assert call(guard, "/ws", kind="websocket", headers={"origin": origin, **SESAME}).status == 4403
        assert call(guard, "/ws", kind="websocket", headers={"host": "evil.example", **SESAME}).status == 4421
        assert call(guard, "/ws", kind="websocket").status == 4401
        assert call(guard, "/ws", kind="websocket", headers=SESAME).status == 101

    def test_a_session_changes_things_only_from_our_page(self, house: House) -> None:
        gate = gate_of(house.service)
        secret, _ = issue(house.service, gate)
        cookie = gate.redeem("here", secret)
        guard = Guard(echo, replace(house, gate=gate))
        jar = {"cookie": f'theirs={{"a":1}}; rota_session="{cookie}"; other=x'}
        assert call(guard, headers=jar).status == 200
        for odd in ("", "\x01"):
            assert call(guard, headers={"cookie": f"rota_session={odd}; rota_session={cookie}"}).status == 200
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert call(guard, method=method, headers=jar).status == 403
            assert call(guard, method=method, headers={**jar, "origin": "http://127.0.0.1:10000"}).status == 200
            assert call(guard, method=method, headers={**jar, "origin": "http://evil.example"}).status == 403
        assert call(guard, "/ws", kind="websocket", headers=jar).status == 101, "whose Origin is checked above"

    def test_odd_cookies_are_nobody(self, guard: Guard) -> None:
        for jar in (
            "rota_session",
            "rota_session=",
            "rota_session=a.b",
            "=;=;",
            ";" * 10_000,
            "rota_session=\x01",
            "é=é",
        ):
            assert call(guard, headers={"cookie": jar}).status == 401


class TestTokens:
    def test_either_header_will_do(self, guard: Guard) -> None:
        assert call(guard, headers={"authorization": "Bearer open sesame"}).status == 200
        assert call(guard, headers={"authorization": "bearer  open sesame "}).status == 200

    @pytest.mark.parametrize(
        "value", ["open sesame", "Basic open sesame", "Bearer", "Bearer ", "BearerX open sesame", ""]
    )
    def test_other_schemes_will_not(self, guard: Guard, value: str) -> None:
        assert call(guard, headers={"authorization": value}).status == 401

    def test_our_header_wins_over_the_other(self, guard: Guard) -> None:
        assert call(guard, headers={"authorization": "Bearer open sesame", "x-auth-token": "wrong"}).status == 401
        assert call(guard, headers={"x-auth-token": "open sesame", "authorization": "Bearer wrong"}).status == 200

    def test_a_token_beyond_ascii_is_one(self, house: House) -> None:
        guard = Guard(echo, replace(house, gate=gate_of(house.service, shared="pässwört")))
        assert call(guard, headers={"x-auth-token": "pässwört"}).status == 200
        assert call(guard, headers={"x-auth-token": "p\udcff"}).status == 401

    def test_the_words_older_clients_read(self, guard: Guard) -> None:
        answer = call(guard)
        assert answer.json == {"detail": "Unauthorized - invalid or missing X-Auth-Token"}


class TestOpenRoutes:
    READ = ("/", "/health", "/docs", "/openapi.json", "/healthz", "/readyz", "/wild/v2/system-health", "/login")

    @pytest.mark.parametrize(
        "path", [*READ, "/prompt-skills", "/prompt-skills/x", "/prompt-skills/x/y", "/static/x.css"]
    )
    def test_open(self, guard: Guard, path: str) -> None:
        answer = call(guard, path)
        assert answer.status == 200
        assert (answer.scope["rota.who"].role.value, answer.scope["rota.by"]) == ("viewer", "")

    @pytest.mark.parametrize(
        "path",
        [
            "/runs", "/prompt-skillsX", "/prompt-skills-private", "/static", "/docs/", "/Docs", "//docs", "/docs/x",
            "/health/../runs", "/metrics", "/wild/v2/system-health/x", "/openapi.json.bak", "", "/\0", "/whoami",
        ],
    )  # fmt: skip
    def test_closed(self, guard: Guard, path: str) -> None:
        assert call(guard, path).status == 401

    def test_skills_are_open_to_read_only(self, guard: Guard) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE", "get"):
            assert call(guard, "/prompt-skills/x/render", method=method).status == 401
            assert not is_open("/static/x", method)

    def test_a_wrong_token_on_an_open_route_is_still_answered(self, guard: Guard) -> None:
        answer = call(guard, "/health", headers={"x-auth-token": "wrong"}, client="10.5.5.5")
        assert answer.status == 200
        assert answer.scope["rota.by"] == ""


class TestBody:
    def test_too_long_by_its_own_word(self, guard: Guard) -> None:
        for length in (str(MAX_BODY + 1), "9" * 18):
            answer = call(guard, method="POST", headers={"content-length": length, **SESAME})
            assert answer.status == 413
            assert str(MAX_BODY) in answer.json["detail"]

    def test_lengths_that_are_no_numbers_promise_nothing(self, guard: Guard) -> None:
        for length in ("", "-1", "1e9", "½", "0x10"):
            assert call(guard, method="POST", headers={"content-length": length, **SESAME}).status == 200

    def test_exactly_the_bound_is_fine(self, guard: Guard) -> None:
        answer = call(guard, method="POST", headers=SESAME, body=[b"x" * (MAX_BODY // 2)] * 2)
        assert (answer.status, answer.body) == (200, str(MAX_BODY).encode())

    def test_too_long_in_pieces(self, shared: House) -> None:
        from rota.api.server import make_app

        guard = Guard(make_app(shared), shared)
        for path in ("/queue/submit", "/tokens"):
            headers = {"content-type": "application/json", **SESAME}
            answer = call(guard, path, "POST", headers, [b" " * (1 << 20)] * 4 + [b"{}"])
            assert answer.status == 413, path
            assert answer.headers["connection"] == "close"

    def test_of_a_caller_who_is_not_known_only_a_small_one_is_taken(self, guard: Guard, shared: House) -> None:
        much = b'"' + b"x" * SMALL_BODY + b'"'
        for headers in ({"content-length": str(len(much))}, {}):
            assert call(Guard(_app(shared), shared), "/login", "POST", {**JSON, **headers}, [much]).status == 413
            leases = Guard(_app(shared), shared, lease_port=True)
            assert call(leases, "/acquire", "POST", {**JSON, **headers}, [much]).status == 413
        assert call(guard, "/login", "POST", JSON, [much[: SMALL_BODY - 2] + b'"']).status == 200
        assert call(guard, "/runs", "POST", {**JSON, **SESAME}, [much]).status == 200

    @pytest.mark.parametrize("member", [b'"k":1,', b"{},"])
    def test_many_members_are_refused_before_they_are_parsed(self, shared: House, member: bytes) -> None:
        guard, headers = Guard(_app(shared), shared), {**JSON, **SESAME}
        body = [b"{", *[member * 10_000] * (MAX_MEMBERS // 10_000 + 1), b"}"]
        for path in ("/runs", "/queue/submit", "/sweeps", "/tokens"):
            answer = call(guard, path, "POST", headers, body)
            assert (answer.status, answer.headers["connection"]) == (413, "close"), path
            assert "members" in answer.json["detail"]
        house = replace(shared, people=Buckets(1.0, 1.0))  # what this costs is no other test's
        assert call(Guard(echo, house), "/runs/0123456789ab/metrics", "POST", headers, body).status == 200

    @pytest.mark.parametrize("nested", [b"[" * 50 + b"]" * 50 + b",", b'{"a":' * 50 + b"1" + b"}" * 50 + b","])
    def test_what_is_nested_is_a_member_too(self, shared: House, nested: bytes) -> None:
        guard, headers = Guard(_app(shared), shared), {**JSON, **SESAME}
        body = [b"[", nested * (MAX_MEMBERS // 50 + 1), b"1]"]
        answer = call(guard, "/runs", "POST", headers, body)
        assert (answer.status, "members" in answer.body.decode()) == (413, True)

    def test_rows_of_numbers_and_a_diff_of_such_rows_are_taken(self, shared: House) -> None:
        row = b'{"step":1,' + b",".join(b'"m%d":0.5' % number for number in range(19)) + b"}"
        rows = [b'{"metrics":[', b",".join([row] * 10_000), b"]}"]
        headers = {**JSON, **SESAME}
        assert call(Guard(echo, shared), "/runs/0123456789ab/metrics", "POST", headers, rows).status == 200
        diff = [b'{"name":"n","workspace":{"diff":"', b"+[123, 456],\\n" * 19_000, b'"}}']
        assert call(Guard(echo, shared), "/runs", "POST", headers, diff).status == 200

    def test_large_ones_count_as_the_calls_they_cost(self, shared: House) -> None:
        house = replace(shared, people=Buckets(1.0, 100.0))
        guard, body = Guard(echo, house), [b"[" + b"1," * 20_000 + b"1]"]
        ann, ben = ({"x-auth-token": issue(house.service, house.gate, name)[0]} for name in ("ann", "ben"))
        assert call(guard, "/runs", "POST", ann, body).status == 200
        assert call(guard, headers=ann).status == 429
        assert call(guard, headers=ben).status == 200, "another caller is not concerned"
        assert call(guard, "/runs", "POST", SESAME, body).status == 200
        assert call(guard, headers=SESAME).status == 200, "nor an admin"

    def test_a_body_that_comes_a_byte_at_a_time_is_not_waited_for(self, shared: House) -> None:
        from rota.api.server import make_app

        guard = Guard(make_app(shared), with_settings(shared, request_seconds=0.2))
        answer = asyncio.run(_dripping(guard))
        assert answer == 408

    def test_waiting_for_the_client_to_leave_has_no_end(self, shared: House) -> None:
        async def patient(scope: Any, receive: Any, send: Any) -> None:
            assert (await receive())["type"] == "http.request"
            await asyncio.sleep(0.5)
            assert (await receive())["type"] == "http.disconnect"
            await echo_nothing(send)

        assert call(Guard(patient, with_settings(shared, request_seconds=0.3)), headers=SESAME).status == 204


async def echo_nothing(send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _dripping(guard: Guard) -> int:
    started: list[int] = []
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/queue/submit", "query_string": b""}
    scope |= {"client": ("127.0.0.1", 1), "root_path": "", "http_version": "1.1", "scheme": "http"}
    scope["headers"] = [(b"host", b"localhost"), (b"x-auth-token", b"open sesame")]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append(message["status"])

    async with asyncio.timeout(30):
        await guard(scope, receive, send)
    return started[0]


class TestLeasePort:
    """Its own port: `srun` sends no token, so on loopback the owner of the pid is the caller."""

    def test_without_a_token_on_loopback(self, shared: House) -> None:
        answer = call(Guard(echo, shared, lease_port=True, loopback=True), "/acquire", "POST")
        assert answer.status == 200
        assert (answer.scope["rota.who"].role.value, answer.scope["rota.by"]) == ("user", "pid")

    def test_an_open_server_gives_no_more_rights_there(self, house: House) -> None:
        answer = call(Guard(echo, house, lease_port=True, loopback=True), "/acquire", "POST")
        assert (answer.scope["rota.who"].role.value, answer.scope["rota.by"]) == ("user", "pid")

    def test_elsewhere_it_needs_one(self, shared: House) -> None:
        guard = Guard(echo, shared, lease_port=True, loopback=False)
        for path in ("/acquire", "/jobs", "/status", "/release"):
            answer = call(guard, path, "POST")
            assert answer.status == 401
            assert answer.json["error"] == answer.json["detail"]
        assert call(guard, "/acquire", "POST", SESAME).status == 200

    def test_a_wrong_one_is_wrong_there_too(self, shared: House) -> None:
        guard = Guard(echo, shared, lease_port=True, loopback=True)
        assert call(guard, "/acquire", "POST", {"x-auth-token": "wrong"}, client="10.6.6.6").status == 401

    def test_pages_of_others_are_kept_out_there_too(self, shared: House) -> None:
        guard = Guard(echo, shared, lease_port=True, loopback=True)
        assert call(guard, "/acquire", "POST", {"origin": "http://evil.example"}).status == 403
        assert call(guard, "/acquire", "POST", {"host": "evil.example"}).status == 421
        assert call(guard, "/acquire", "POST", {"content-length": str(MAX_BODY + 1)}).status == 413


class TestPace:
    def test_an_agent_has_a_budget_and_its_person_goes_on(self, house: House) -> None:
        gate = gate_of(house.service)
        bot, _ = issue(house.service, gate, "bot", "agent", acts_for="ann")
        ann, _ = issue(house.service, gate, "ann", "user")
        slow = replace(house, gate=gate, settings=replace(house.settings, agent_calls=1))
        guard = Guard(echo, slow)
        statuses = [call(guard, headers={"x-auth-token": bot}).status for _ in range(12)]
        assert statuses == [200] * 10 + [429] * 2
        refused = call(guard, headers={"x-auth-token": bot})
        assert int(refused.headers["Retry-After".lower()]) >= 1
        assert "bot" in refused.json["detail"]
        assert call(guard, headers={"x-auth-token": ann}).status == 200

    def test_a_person_may_submit_thousands_a_second(self, shared: House) -> None:
        people = Buckets(CALLS_PER_S, CALLS_AT_ONCE)
        assert not any(people.take("ann", i / 5000) for i in range(25_000))

    def test_guesses_are_counted_for_the_network(self, house: House) -> None:
        guard = Guard(echo, replace(house, gate=gate_of(house.service, shared="sesame", login_tries=3)))

        def guess(client: str) -> int:
            return call(guard, headers={"x-auth-token": "wrong"}, client=client).status

        assert [guess(f"2001:db8::{i}") for i in range(1, 6)] == [401] * 3 + [429] * 2
        assert guess("2001:db8:0:1::1") == 401
        assert [guess(f"127.7.{i}.{i}") for i in range(1, 6)] == [401] * 3 + [429] * 2, (
            "all that one machine calls itself"
        )

    def test_guesses_over_loopback_are_counted_for_the_account(self, house: House) -> None:
        """Everybody on a machine has the sixteen million addresses of 127/8."""
        from rota.api.server import guarded

        told = replace(house, gate=gate_of(house.service, shared="sesame", login_tries=3))

        async def guess(address: tuple[str, int], source: str, how: str, secret: str) -> int:
            reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
            body = f'{{"code": "{secret}"}}'
            asked = (
                f"GET /whoami HTTP/1.1\r\nx-auth-token: {secret}\r\nhost: 127.0.0.1\r\n\r\n"
                if how == "token"
                else f"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n{body}"
            )
            writer.write(asked.encode())
            status = int((await reader.readline()).split()[1])
            writer.close()
            return status

        async def story() -> list[int]:
            async with asyncio.timeout(60), serving(guarded(told), told) as (address, _):
                ways = [("token", "a"), ("login", "b"), ("token", "c"), ("login", "sesame"), ("token", "sesame")]
                return [await guess(address, f"127.7.0.{i + 1}", how, secret) for i, (how, secret) in enumerate(ways)]

        assert asyncio.run(story()) == [401] * 3 + [429] * 2

    def test_guesses_of_an_account_count_together_by_whatever_address_or_device_they_come(self, house: House) -> None:
        from rota.api.server import guarded

        told = replace(house, gate=gate_of(house.service, shared="sesame", login_tries=3))

        async def guess(address: tuple[str, int], number: int, bound: tuple[str, bytes]) -> int:
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound[1])  # b"": to none
            link.bind((bound[0], 0))
            link.connect(address)  # is done by the kernel: the event loop need not run for it
            reader, writer = await asyncio.open_connection(sock=link)
            writer.write(f"GET /whoami HTTP/1.1\r\nx-auth-token: g{number}\r\nhost: 127.0.0.1\r\n\r\n".encode())
            status = int((await reader.readline()).split()[1])
            writer.close()
            return status

        async def story() -> list[int]:
            ways = [(HERE, b""), ("127.7.0.1", b"lo"), (own_address(), b"")]
            async with asyncio.timeout(60), serving(guarded(told), told) as (address, _):
                return [await guess(address, number, ways[number % 3]) for number in range(6)]

        assert asyncio.run(story()) == [401] * 3 + [429] * 3

    def test_too_many_guesses_say_how_long_to_wait(self, house: House) -> None:
        guard = Guard(echo, replace(house, gate=gate_of(house.service, shared="sesame", login_tries=2)))
        answers = [call(guard, headers={"x-auth-token": "wrong"}) for _ in range(3)]
        assert [answer.status for answer in answers] == [401, 401, 429]
        assert answers[-1].headers["retry-after"] == "60"


class TestHeaders:
    def of(self, answer: Answer) -> None:
        for name, value in HEADERS:
            assert answer.headers[name.decode()] == value.decode()
        assert answer.headers["cache-control"] == "no-store"

    def test_they_are_on_every_answer(self, guard: Guard) -> None:
        self.of(call(guard, headers=SESAME))
        self.of(call(guard))
        self.of(call(guard, headers={"host": "evil.example"}))
        self.of(call(guard, headers={"origin": "null", **SESAME}))
        self.of(call(guard, method="POST", headers={"content-length": "99999999", **SESAME}))

    def test_also_when_an_app_breaks(self, shared: House) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        def broken(request: Any) -> Any:
            raise RuntimeError("sesame inside")

        guard = Guard(Starlette(routes=[Route("/runs", broken)]), shared)
        got: list[Any] = []

        async def go() -> None:
            async def send(message: Any) -> None:
                got.append(message)

            async def receive() -> Any:
                return {"type": "http.request", "body": b""}

            scope = {"type": "http", "method": "GET", "path": "/runs", "query_string": b"", "client": ("h", 1)}
            scope |= {"headers": [(b"host", b"localhost"), (b"x-auth-token", b"open sesame")], "root_path": ""}
            with pytest.raises(RuntimeError):
                await guard(scope, receive, send)

        asyncio.run(go())
        assert got[0]["status"] == 500
        assert set(HEADERS) <= set(got[0]["headers"])
        assert b"sesame" not in got[1]["body"]

    def test_an_answer_that_may_be_kept_says_so_itself(self, shared: House) -> None:
        async def kept(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"max-age=60")]})
            await send({"type": "http.response.body", "body": b""})

        assert call(Guard(kept, shared), headers=SESAME).headers["cache-control"] == "max-age=60"

    def test_the_policy_allows_no_inline_script_and_no_frame(self) -> None:
        policy = dict(HEADERS)[b"content-security-policy"].decode()
        assert "unsafe" not in policy
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "query",
    [
        "dry-run=true",
        "dryrun=1",
        "x=1&DryRun=",
        "dry%2Drun=true",
        "DRY_RUN=true",
        "%64ry-run=1",
        "dry=true",
        "".join(f"%{letter:02x}" for letter in b"dry-runs") + "=1",
    ],
)
def test_a_dry_run_that_is_misspelt_is_not_done_in_earnest(guard: Guard, query: str) -> None:
    for path in ("/runs", "/queue/submit", "/release"):
        answer = call(guard, path, "POST", SESAME, query=query)
        assert answer.status == 422 and b"dry_run=true; nothing was done" in answer.body
        assert json.loads(answer.body)["detail"][0]["loc"] == ["query", "dry_run"]
    assert call(guard, "/runs", "POST", SESAME, query="dry_run=true&laundry=2").status == 200


class TestHeads:
    """They are parsed on the event loop, before anybody is known."""

    def test_a_query_has_a_few_parameters(self, guard: Guard) -> None:
        few, many = ("&".join(f"%2{n % 10}{n}=1" for n in range(count)) for count in (100, 101))
        assert call(guard, "/runs", headers=SESAME, query=few).status == 200
        for headers in (SESAME, {}):
            refused = call(guard, "/runs", headers=headers, query=many)
            assert (refused.status, "100" in refused.json["detail"]) == (414, True)

    def test_no_cookie_but_ours_reaches_the_app(self, shared: House) -> None:
        """Python's own parser takes seconds for some (CVE-2024-7592), and is asked on every route."""
        seen: list[list[tuple[bytes, bytes]]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append([each for each in scope["headers"] if each[0] == b"cookie"])
            await echo(scope, receive, send)

        guard = Guard(app, shared)
        costly = 'a="' + "\\" * 14_000 + '"'
        for jar in (costly, f"{costly}; rota_session=abc.def", f"rota_session={costly}", "a=" + "x" * 60_000):
            assert call(guard, "/healthz", headers={"cookie": jar}).status == 200
        assert seen == [[], [(b"cookie", b"rota_session=abc.def")], [], []]

    def test_addresses_and_headers_are_bounded(self, guard: Guard) -> None:
        assert call(guard, "/healthz", query="a&" * 5_000).status == 414
        assert call(guard, "/" + "a" * 9_000).status == 414
        assert call(guard, headers={f"x-{n}": "" for n in range(200)}).status == 431
        assert call(guard, headers={**SESAME, "content-type": "a;" * 5_000}).status == 431
        assert call(guard, "/runs", headers=SESAME, query="tag=" + "a" * 4_000).status == 200


def test_lifespan_passes_through(shared: House) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(Guard(app, shared)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]
