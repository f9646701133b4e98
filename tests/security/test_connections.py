"""Connections cannot use up what the work needs: neither many of them, nor slow ones, on either port or the socket."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.app.house import PATIENCE_S, until
from tests.doors.server import Answer, parse
from tests.security.kit import SHARED, Lab
from tests.security.test_load import connected, dripping, head

DESCRIPTORS = 256  # of the server: few, so that a test can use them up


def descriptors(lab: Lab) -> int:
    assert lab.process is not None
    return len(os.listdir(f"/proc/{lab.process.pid}/fd"))


def on_socket(stack: ExitStack, lab: Lab) -> socket.socket:
    one = stack.enter_context(socket.socket(socket.AF_UNIX))
    one.settimeout(30)
    one.connect(str(lab.data / "rota.sock"))
    return one


def said(one: socket.socket) -> bytes:
    """All that came, once the server has closed it; nothing where it hung up."""
    got = b""
    try:
        while piece := one.recv(1 << 16):
            got += piece
    except ConnectionError:
        pass
    return got


def is_open(one: socket.socket) -> bool:
    patience = one.gettimeout()
    one.settimeout(0)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        one.settimeout(patience)


def by_another(lab: Lab, path: str, port: int = 0) -> Answer:
    """As another account of this machine."""
    url = f"http://127.0.0.1:{port or lab.port}{path}"
    # by its input: another test looks for this token on all command lines of the machine
    argv, header = ["curl", "-sS", "-i", "--max-time", "60", "-H", "@-", url], f"X-Auth-Token: {SHARED}\n".encode()
    return parse(subprocess.run(argv, user=54321, cwd="/", input=header, capture_output=True, check=True).stdout)


def works(lab: Lab) -> None:
    """A run starts, ends, and is shown as ended; everything answers."""
    run_id = lab.submit("echo done", gpus=0)
    lab.in_state(run_id, "completed")
    assert lab.get("/status", lease=True).status == 200
    assert lab.on_socket("GET", "/whoami").status == 200


def test_idle_connections_use_up_nothing_that_others_need(make_lab: Callable[..., Lab]) -> None:
    # long enough for the first byte that none of them is closed for its silence
    lab = make_lab(descriptors=DESCRIPTORS, env={"ROTA_REQUEST_SECONDS": "1800"})
    works(lab)
    before = descriptors(lab)
    slow = lab.submit("sleep 3", gpus=0)  # ends while they are there
    with ExitStack() as stack:
        idle = [connected(stack, port) for _ in range(200) for port in (lab.port, lab.lease_port)]
        idle += [on_socket(stack, lab) for _ in range(200)]
        for _ in range(3):
            works(lab)
        lab.in_state(slow, "completed")
        assert descriptors(lab) < DESCRIPTORS / 2 + 20, "the work has its share"
        assert sum(map(is_open, idle)) < DESCRIPTORS, "the oldest have made room"
    until(lambda: descriptors(lab) <= before + 4, "all descriptors are given back")  # a few readers of the store more
    works(lab)


RANGES = "range: bytes=" + ",".join(f"{2 * place}-{2 * place}" for place in range(100))


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("/static/app.js", RANGES), ("/static/app.js", "accept: */*"), ("/", "accept: text/html"), ("/docs", "a: b")],
)
def test_an_answer_that_nobody_reads_costs_its_connection_alone(
    make_lab: Callable[..., Lab], path: str, wanted: str
) -> None:
    lab, count = make_lab(descriptors=DESCRIPTORS), 60
    asked = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{lab.port}\r\n{wanted}\r\n\r\n".encode() * 100
    until(lambda: by_another(lab, "/docs").status == 200, "the reference is made")
    before = descriptors(lab)
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 100)
            one.settimeout(PATIENCE_S)
            one.connect(("127.0.0.1", lab.port))
            one.sendall(asked)
            assert one.recv(10) == b"HTTP/1.1 2"
        assert descriptors(lab) <= before + count + 4  # a few readers of the store more
        works(lab)


def watchers(stack: ExitStack, lab: Lab, count: int) -> list[socket.socket]:
    """Connections that are in use: each follows the events."""
    made = [connected(stack, lab.port, head(lab, "/events")) for _ in range(count)]
    assert {one.recv(12) for one in made} == {b"HTTP/1.1 200"}
    return made


def metric(answer: Answer, name: str) -> float:
    lines = (line.partition(" ") for line in answer.body.decode().splitlines())
    return next(float(value) for known, _, value in lines if known == name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
def test_who_has_too_many_is_refused_and_others_are_served(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(descriptors=DESCRIPTORS)
    allowed = int(metric(by_another(lab, "/metrics"), "rota_connections_per_peer_max"))
    assert DESCRIPTORS / 4 < allowed < DESCRIPTORS / 2
    run_id = lab.submit("sleep 5", gpus=0)
    with ExitStack() as stack:
        many = watchers(stack, lab, allowed)
        refused = [said(connected(stack, lab.port, head(lab, "/events"))) for _ in range(20)]
        assert all(text.startswith(b"HTTP/1.1 429 ") for text in refused), refused
        assert b"retry-after: 5\r\n" in refused[0]
        assert b'"detail":"uid 0 has' in refused[0]
        assert said(connected(stack, lab.lease_port)).startswith(b"HTTP/1.1 429 "), "one bound for all ports"
        assert said(on_socket(stack, lab)).startswith(b"HTTP/1.1 429 "), "and the socket"
        assert all(map(is_open, many)), "who was there first stays"
        assert by_another(lab, "/health").status == 200
        assert by_another(lab, "/status", lab.lease_port).status == 200
        until(lambda: b'"completed"' in by_another(lab, f"/queue/{run_id}").body, "the run is shown as ended")
        assert metric(by_another(lab, "/metrics"), "rota_connections_refused_total") == 22
    until(lambda: is_served(lab), "with the connections gone there is room again")
    works(lab)
    assert 1 <= lab.said().count("is refused") < 5, "said once a minute, not for each of 22"


@contextmanager
def watched_by(uid: int, lab: Lab, count: int) -> Iterator[Callable[[], int]]:
    """Another account follows the events as often as this; the function tells how many of its connections are open.
    Forked: that account could not start this Python, which may lie in somebody's home."""
    asks, says = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            asks.close()
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with ExitStack() as stack:
                made = [connected(stack, lab.port, head(lab, "/events")) for _ in range(count)]
                for one in made:
                    with suppress(ConnectionError):
                        one.recv(12)  # it is answered: with events, or with a refusal
                while says.recv(1):
                    says.sendall(b"%8d" % sum(map(goes_on, made)))
        finally:
            os._exit(0)
    says.close()

    def open_now() -> int:
        asks.sendall(b"?")
        return int(asks.recv(8, socket.MSG_WAITALL))

    with asks:
        asks.settimeout(PATIENCE_S)
        open_now()
        yield open_now
    os.waitpid(pid, 0)


def goes_on(one: socket.socket) -> bool:
    """Whether a stream is open still, once all that has come of it was taken."""
    one.settimeout(0)
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as other accounts")
def test_accounts_that_take_all_there_is_leave_the_reserve_and_room_for_others(make_lab: Callable[..., Lab]) -> None:
    """Each stays within its own bound, together they are over that of all; none is idle."""
    lab = make_lab(descriptors=DESCRIPTORS)
    allowed = int(metric(by_another(lab, "/metrics"), "rota_connections_per_peer_max"))
    with watched_by(54322, lab, allowed) as first, watched_by(54323, lab, allowed) as second:
        assert allowed < first() + second() <= DESCRIPTORS / 2, "as many as fit, and the work has its share"
        assert by_another(lab, "/health").status == 200, "a third account has few, and is served"
        works(lab)


def is_served(lab: Lab) -> bool:
    return lab.get("/health").status == 200


def test_who_says_nothing_at_all_is_waited_for_least(make_lab: Callable[..., Lab]) -> None:
    """On either port and the socket: 10 s for the first byte, and 30 s for the head, where a body has 60."""
    lab = make_lab(env={"ROTA_REQUEST_SECONDS": "60"})
    with ExitStack() as stack:
        silent = [connected(stack, port) for port in (lab.port, lab.lease_port)] + [on_socket(stack, lab)]
        begun = [connected(stack, port, b"GET /status HTTP/1.1\r\n") for port in (lab.port, lab.lease_port)]
        until(lambda: not any(map(is_open, silent)), "who says nothing is hung up on")
        assert all(map(is_open, begun)), "who has begun is still waited for"


def test_slow_clients_are_waited_for_for_a_while_and_disturb_nobody(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(env={"ROTA_REQUEST_SECONDS": "12"})
    body = ("content-type: application/json", "content-length: 1000")
    with ExitStack() as stack:
        began = time.monotonic()
        silent, heads, bodies = [], [], []
        for port, path in ((lab.port, "/queue/submit"), (lab.lease_port, "/acquire")):
            silent += [connected(stack, port) for _ in range(100)]
            heads += [connected(stack, port, b"GET /status HTTP/1.1\r\nhost: ") for _ in range(100)]
            bodies += [connected(stack, port, head(lab, path, "POST", *body)) for _ in range(100)]
        silent += [on_socket(stack, lab) for _ in range(50)]
        stack.enter_context(dripping(heads + bodies))
        while time.monotonic() - began < 5:
            works(lab)
        until(lambda: not any(map(is_open, silent)), "who says nothing is hung up on")
        until(lambda: not any(map(is_open, heads)), "and who never comes to the end of a head")
        answers = {said(one).partition(b" ")[2][:3] for one in bodies}
        assert answers <= {b"408", b"413"}, answers
        works(lab)


HANDSHAKE = (
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)
EMPTY_TEXT, PING, PONG, NOT_LAST = b"\x81\x80----", b"\x89\x80----", b"\x8a\x80----", b"\x01\x80----"


@pytest.mark.parametrize("frame", [EMPTY_TEXT, PING, PONG, NOT_LAST])
def test_a_watcher_that_talks_without_end_is_hung_up_on(lab: Lab, frame: bytes) -> None:
    """Frames cost the event loop far more than their sender. A watcher has next to nothing to say."""
    asked = head(lab, "/ws", "GET", *HANDSHAKE).replace(SHARED.encode(), lab.tokens["eve"].encode())
    with ExitStack() as stack:
        patient = connected(stack, lab.port, asked)
        talkers = [connected(stack, lab.port, asked) for _ in range(5)]
        for one in (patient, *talkers):
            assert one.recv(12) == b"HTTP/1.1 101"
        for one in talkers:
            with suppress(ConnectionError):  # it was hung up on meanwhile
                one.sendall(frame * 100_000)
        until(lambda: not any(map(goes_on, talkers)), "they are hung up on")
        patient.sendall(PING)
        until(lambda: b"\x8a\x00" in taken(patient), "who says little is heard")
        assert goes_on(patient)
    assert lab.get("/health").status == 200


def taken(one: socket.socket) -> bytes:
    """What has come."""
    one.settimeout(0)
    try:
        return one.recv(1 << 16)
    except BlockingIOError:
        return b""


def test_a_watcher_is_told_why_it_is_hung_up_on(lab: Lab) -> None:
    asked = head(lab, "/ws", "GET", *HANDSHAKE)
    with ExitStack() as stack:
        one = connected(stack, lab.port, asked)
        assert one.recv(12) == b"HTTP/1.1 101"
        one.sendall(EMPTY_TEXT * 1000)
        assert b"\x03\xf0a watcher may send" in said(one), "1008"
        too_long = connected(stack, lab.port, asked)
        assert too_long.recv(12) == b"HTTP/1.1 101"
        too_long.sendall(b"\x81\xfe\xff\xff----")
        assert b"\x03\xf1" in said(too_long), "1009"
