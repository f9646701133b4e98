"""The lease door as its clients in the field use it: a shell script with curl and jq that becomes its command."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends import procs
from tests.app.house import PATIENCE_S, Gate, alive, until
from tests.backends.helpers import sleeps
from tests.doors.server import PROGRAM, Answer, Server, parse

SRUN = str(Path(__file__).with_name("srun.sh"))
NOBODY = 65534


class Desk:
    """Somebody at a shell, with the script."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self.server, self._stack = server, stack
        self.env = {"PATH": os.environ["PATH"], "GPUSCHED_URL": server.lease_url, "TMPDIR": str(server.where)}

    def srun(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SRUN, *args], env=self.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [SRUN, *args], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        return process

    def holder(self, gpus: int = 1) -> subprocess.Popen[str]:
        """A script that has its GPUs and became `sleep`."""
        process = self.start("-n", str(gpus), "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 100000")
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: self.of(process.pid)["status"] == "running", "it holds them")
        return process

    def waiter(self, gpus: int = 1) -> subprocess.Popen[str]:
        """A script that stands in the queue."""
        process = self.start("-n", str(gpus), "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 100000")
        until(lambda: self.of(process.pid)["status"] == "queued" and sleeps(process.pid), "it waits")
        return process

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get("/jobs", lease=True).ok()
        return found

    def of(self, pid: int) -> dict[str, Any]:
        return next((job for job in self.jobs() if job["pid"] == pid), {"status": "unknown"})

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get("/status", lease=True).ok()
        return found

    def free(self) -> int:
        status = self.status()
        return int(status["gpus_total"]) - len(status["gpus_allocated"])

    def acquire(self, body: Any, *headers: str) -> Answer:
        return self.server.post("/acquire", body, lease=True, headers=headers)


@contextmanager
def at(server: Server) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(server, stack)


@pytest.fixture
def desk(make_server: Callable[..., Server]) -> Iterator[Desk]:
    """One node with four GPUs."""
    with at(make_server(nodes=1, gpus=4)) as made:
        yield made


@pytest.fixture(scope="module")
def quiet(common: Server) -> Iterator[Desk]:
    """For requests that leave nothing behind."""
    with at(common) as made:
        yield made


# -- looking --------------------------------------------------------------------------------------------------------
def test_the_status(quiet: Desk) -> None:
    status = quiet.status()
    assert status["service"] == "local-gpu-scheduler"
    assert isinstance(status["version"], str)
    assert type(status["uptime_s"]) is int
    assert status["port"] == quiet.server.lease_port
    assert (status["gpus_total"], status["gpus_allocated"]) == (16, [])
    assert (status["jobs_running"], status["jobs_queued"], status["jobs_total"]) == (0, 0, 0)
    assert quiet.jobs() == []
    assert json.loads(quiet.srun("status").stdout)["service"] == "local-gpu-scheduler"
    assert json.loads(quiet.srun("jobs").stdout) == []
    assert quiet.server.get("/status").ok()["gpus_total"] == 16, "the same routes stand at the main port"


def test_unknown_paths_and_methods(quiet: Desk) -> None:
    for path in ("/", "/nothing", "/queue", "/runs", "/status/", "/acquire/x", "/docs"):
        answer = quiet.server.get(path, lease=True)
        assert (answer.status, answer.json) == (404, {"error": "not found"}), path
    for method, path in (("POST", "/status"), ("GET", "/acquire"), ("DELETE", "/jobs"), ("PUT", "/release")):
        answer = quiet.server.call(method, path, lease=True)
        assert answer.status == 405
        assert list(answer.json) == ["error"]


def test_a_lease_is_seen_through_every_door(desk: Desk) -> None:
    job = desk.server.sleeper(1)
    desk.server.in_state(job, "running")
    process = desk.holder(2)
    mine = desk.of(process.pid)
    assert (mine["status"], mine["num_gpus"], len(mine["gpus"])) == ("running", 2, 2)
    assert "sleep" in mine["cmd"] or "srun" in mine["cmd"]
    assert {one["id"] for one in desk.jobs() if one["status"] == "running"} == {mine["id"], job}
    status = desk.status()
    assert len(status["gpus_allocated"]) == 3, "whoever was given them"
    assert (status["jobs_running"], status["jobs_queued"]) == (2, 0)
    assert mine["id"] in {one["id"] for one in desk.server.get("/queue").ok()["running"]}
    assert desk.server.get(f"/runs/{mine['id']}").ok()["status"] == "running"
    assert desk.server.get("/gpu/status").ok()["cluster_status"]["allocated_gpus"] == 3
    process.kill()
    until(lambda: desk.of(process.pid)["status"] == "done", "its end is seen")
    assert desk.of(process.pid)["gpus"] == []


# -- the script -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_it_becomes_the_command(quiet: Desk, line: str, code: int) -> None:
    done = quiet.srun("-n", "2", "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; {line}")
    assert done.returncode == code
    assert len(done.stdout.strip().split(",")) == 2
    until(lambda: quiet.free() == 16, "its GPUs are free again")


def test_zero_gpus(quiet: Desk) -> None:
    done = quiet.srun("-n", "0", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    assert (done.returncode, done.stdout) == (0, "[]\n")
    answer = quiet.acquire({"pid": os.getpid(), "num_gpus": 0}).ok()
    assert answer["gpus"] == ""
    assert quiet.server.post("/release", {"job_id": answer["job_id"]}, lease=True).ok() == {"released": True}


def test_without_a_server() -> None:
    env = {"PATH": os.environ["PATH"], "GPUSCHED_URL": "http://127.0.0.1:1"}
    done = subprocess.run([SRUN, "true"], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 69
    assert "no server" in done.stderr


def test_over_asking(quiet: Desk) -> None:
    answer = quiet.acquire({"pid": os.getpid(), "num_gpus": 17})
    assert answer.status == 400
    assert answer.json == {"error": "requested 17 GPU(s) but only 16 available on this machine"}
    done = quiet.srun("-n", "17", "true")
    assert done.returncode == 75
    assert "only 16 available" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 10_000,
        {},
        {"num_gpus": 1},
        {"pid": None},
        {"pid": "12"},
        {"pid": 1.0},
        {"pid": True},
        {"pid": [1]},
        b'{"pid": NaN}',
        b'{"pid": 1e3}',
        b'{"pid": ' + b"9" * 5000 + b"}",
        {"pid": 1, "num_gpus": "2"},
        {"pid": 1, "num_gpus": 1.5},
        {"pid": 1, "num_gpus": None},
        {"pid": 1, "num_gpus": True},
        {"pid": 1, "num_gpus": -1},
        {"pid": 1, "num_gpus": 2**63},
    ],
)
def test_bad_requests_are_refused_in_this_doors_shape(quiet: Desk, body: Any) -> None:
    for lease in (True, False):
        answer = quiet.server.post("/acquire", body, lease=lease)
        assert answer.status == 400, answer.body
        assert list(answer.json) == ["error"]
        assert isinstance(answer.json["error"], str)
    assert quiet.status()["gpus_allocated"] == []


def test_a_process_that_is_not_there(quiet: Desk) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, 0, -1, 2**63, 4_194_304):
        answer = quiet.acquire({"pid": pid, "num_gpus": 1})
        assert (answer.status, answer.json) == (200, {"error": "pid not alive"}), pid


def test_a_body_without_end(quiet: Desk) -> None:
    huge = b'{"pid": 1, "x": "' + b"x" * (10 << 20) + b'"}'
    answer = quiet.acquire(huge)
    assert answer.status == 413
    assert "error" in answer.json
    assert quiet.acquire(huge, "Transfer-Encoding: chunked").status == 413


# -- waiting --------------------------------------------------------------------------------------------------------
def test_waiting_until_somebody_ends(desk: Desk) -> None:
    gate = Gate(desk.server.where / "gate")
    holder = desk.start("-n", "4", "sh", "-c", f"read x < {gate.path}; exit 3")
    until(lambda: desk.free() == 0, "all are held")
    waiter = desk.waiter(2)
    gate.open()
    assert holder.wait(PATIENCE_S) == 3
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "0,1\n"


def test_a_killed_holder_frees_its_gpus(desk: Desk) -> None:
    holder = desk.holder(4)
    waiter = desk.waiter(4)
    holder.kill()
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "0,1,2,3\n"
    until(lambda: desk.of(waiter.pid)["status"] == "running", "it has become a holder")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_waiter_that_is_ended_leaves_the_queue(desk: Desk, number: signal.Signals) -> None:
    holder = desk.holder(4)
    waiter = desk.waiter(4)
    waiter.send_signal(number)
    assert waiter.wait(PATIENCE_S) == -number
    until(lambda: desk.status()["jobs_queued"] == 0, "it left")
    holder.kill()
    until(lambda: desk.free() == 4, "nobody inherits")


def test_a_client_that_hangs_up_leaves_the_queue(desk: Desk) -> None:
    """The process lives on; only its connection is gone."""
    desk.holder(4)
    body = json.dumps({"pid": os.getpid(), "num_gpus": 4})
    with subprocess.Popen(["curl", "-sS", "-d", body, f"{desk.server.lease_url}/acquire"]) as client:
        until(lambda: desk.of(os.getpid())["status"] == "queued", "it waits")
        client.kill()
    until(lambda: desk.status()["jobs_queued"] == 0, "it left")
    assert desk.of(os.getpid())["status"] == "done"


@pytest.mark.parametrize("reset", [False, True])
def test_also_one_that_has_sent_much_behind_its_request(desk: Desk, reset: bool) -> None:
    """The server then reads no further, and so hears nothing of its end."""
    desk.holder(4)
    body = json.dumps({"pid": os.getpid(), "num_gpus": 4}).encode()
    head = b"POST /acquire HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", desk.server.lease_port)) as client:
        client.sendall(head + body + b"GET /status HTTP/1.1\r\nx: " + b"y" * 20_000)
        until(lambda: desk.of(os.getpid())["status"] == "queued", "it waits")
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: desk.status()["jobs_queued"] == 0, "it left")


def test_a_big_request_is_not_starved_by_small_ones(desk: Desk) -> None:
    small = [desk.holder(1), desk.holder(1)]
    big = desk.waiter(4)
    later = [desk.waiter(1) for _ in range(3)]
    assert desk.free() == 2, "two are free, and kept for the one that was there first"
    queued = [job["pid"] for job in desk.jobs() if job["status"] == "queued"]
    assert queued == [big.pid, *(one.pid for one in later)]
    for one in small:
        one.kill()
    assert big.stdout is not None
    assert big.stdout.readline() == "0,1,2,3\n"
    assert all(desk.of(one.pid)["status"] == "queued" for one in later)


def test_a_job_and_a_lease_never_share_a_gpu(desk: Desk) -> None:
    job = desk.server.in_state(desk.server.sleeper(3), "running")
    lease = desk.holder(1)
    taken = {int(gpu.partition(":")[2]) for gpu in job["gpus"]}
    assert taken.isdisjoint(desk.of(lease.pid)["gpus"])
    waiting = desk.server.sleeper(1)
    assert desk.server.job(waiting)["state"] == "queued"
    lease.kill()
    desk.server.in_state(waiting, "running")


def test_flat_numbers_over_two_nodes(make_server: Callable[..., Server]) -> None:
    with at(make_server(nodes=2, gpus=2)) as desk:
        assert desk.status()["gpus_total"] == 4
        desk.holder(4)
        assert desk.status()["gpus_allocated"] == [0, 1, 2, 3]


# -- whose ----------------------------------------------------------------------------------------------------------
def through_socket(directory: Path, path: str, body: Any, uid: int = NOBODY) -> Answer:
    """A call on the unix socket in this directory, as another account.

    It is made by a fork of this process from inside the directory: the other account may neither look into the
    directories above nor start this Python, which may lie in somebody's home.
    """
    os.chmod(directory, 0o711)  # noqa: S103 - as it is where a server has people
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    heard, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(PATIENCE_S)
                link.connect("rota.sock")
                link.sendall(head.encode() + content)
                while piece := link.recv(65536):
                    os.write(says, piece)
        finally:
            os._exit(0)
    os.close(says)
    with open(heard, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    assert text, "nobody answers on the socket"
    return parse(text)


def test_who_says_when_its_process_started_is_not_taken_for_another_of_the_same_number(quiet: Desk) -> None:
    started = procs.start_time(os.getpid())
    assert started is not None
    body = {"pid": os.getpid(), "num_gpus": 0}
    given = quiet.acquire({**body, "start_ticks": started}).ok()
    assert quiet.server.post("/release", {"job_id": given["job_id"]}, lease=True).ok() == {"released": True}
    for way in ({}, {"lease": True}):
        refused = quiet.server.post("/acquire", {**body, "start_ticks": started - 1}, **way)
        assert refused.status == 400
        assert "a container" in refused.json["error"] and "--pid=host" in refused.json["error"]
    odds: list[Any] = ["soon", 1.5, True, []]
    for odd in odds:
        refused = quiet.acquire({**body, "start_ticks": odd})
        assert (refused.status, refused.json["error"]) == (400, "start_ticks: must be a whole number")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a pid namespace")
@pytest.mark.parametrize("way", ["its socket, without a word of the start", "its socket", "its port"])
def test_a_number_from_a_container_is_not_taken_for_the_process_outside(desk: Desk, way: str) -> None:
    """Else the lease would last as long as the other process, and the GPUs be given to the next while they are used."""
    url = desk.server.lease_url if way == "its port" else f"unix://{desk.server.data}/rota.sock"
    ask = [*PROGRAM, "run", "-G", "1", "--", "true"]
    if way == "its socket, without a word of the start":
        body = json.dumps({"pid": os.getpid(), "num_gpus": 1})
        ask = ["curl", "-sS", "--unix-socket", f"{desk.server.data}/rota.sock", "-d", body, "http://localhost/acquire"]
    # the next process inside has the number of one outside that is this account's own
    inside = f'echo {os.getpid() - 1} > /proc/sys/kernel/ns_last_pid; "$@" & wait $!'
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inside, "sh", *ask],
        env={**desk.server.env, "GPUSCHED_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = done.stdout + done.stderr
    if "unshare failed" in said:
        pytest.skip("no namespaces here")
    assert "start the container with --pid=host" in said, said
    assert desk.free() == 4
    assert desk.jobs() == []


@contextmanager
def sleeping(uid: int) -> Iterator[int]:
    """A process of this account; its pid."""
    process = subprocess.Popen(["sleep", "100000"], user=uid, group=uid, extra_groups=[])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start a process of another account")
def test_root_leases_for_a_process_of_somebody_else(desk: Desk) -> None:
    """As under sudo. The lease is its process's owner's; that root asked for it is told."""
    with sleeping(NOBODY) as theirs:
        given = desk.acquire({"pid": theirs, "num_gpus": 1}).ok()
        mine = desk.of(theirs)
        assert (mine["id"], mine["user"]) == (given["job_id"], "nobody")
        run = desk.server.get(f"/runs/{given['job_id']}").ok()
        assert (run["user"], run["lease"]) == ("nobody", {"pid": theirs, "asked_by": "root"})
        assert asked_in_events(desk.server, given["job_id"]) == "root"
    until(lambda: desk.free() == 4, "it ended with its process")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
@pytest.mark.parametrize("tokens", [False, True], ids=["open", "with-tokens"])
def test_nobody_leases_for_a_process_that_is_not_theirs(make_server: Callable[..., Server], tokens: bool) -> None:
    """By no way in: the connection's account, as the kernel tells it, must be the process's."""
    server = make_server(nodes=1, gpus=4, env={"ROTA_SHARED_TOKEN": "shared-secret"} if tokens else {})
    server.token = "shared-secret" if tokens else None
    bens = server.post("/tokens", {"user": "ben", "role": "user"}).ok()["token"] if tokens else ""

    def at_port(url: str, *options: str) -> Callable[[str, Any], Answer]:
        return lambda path, body: as_nobody(url + path, body, *options)

    ways: dict[str, Callable[[str, Any], Answer]] = {"lease port": at_port(server.lease_url)}
    ways["socket"] = partial(through_socket, server.data)
    for token in (bens, "shared-secret") if tokens else ("",):
        ways[f"port, token {token!r}"] = at_port(server.url, *(["-H", f"X-Auth-Token: {token}"] if token else []))
    with sleeping(54321) as somebodys, sleeping(NOBODY) as own:
        for way, ask in ways.items():
            for pid in (os.getpid(), somebodys):
                for query in ("", "?dry_run=true"):
                    refused = ask(f"/acquire{query}", {"pid": pid, "num_gpus": 4})
                    assert (refused.status, list(refused.json)) == (403, ["error"]), (way, refused.body)
                    assert "account it belongs to" in refused.json["error"]
            assert server.get("/status").ok()["gpus_allocated"] == []
            given = ask("/acquire", {"pid": own, "num_gpus": 1}).ok()
            run = server.get(f"/runs/{given['job_id']}").ok()
            assert run["lease"] == {"pid": own, "asked_by": "nobody"}
            server.post("/release", {"job_id": given["job_id"]}).ok()
            until(lambda: server.get("/status").ok()["gpus_allocated"] == [], "it is given back")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
def test_an_id_without_an_account_needs_a_token(make_server: Callable[..., Server]) -> None:
    """Else whoever may have many ids would have as many shares, reservations and leases as ids."""
    server = make_server(nodes=1, gpus=4, env={"ROTA_SHARED_TOKEN": "shared-secret"})
    server.token = "shared-secret"
    anns = ["-H", f"X-Auth-Token: {server.post('/tokens', {'user': 'ann', 'role': 'user'}).ok()['token']}"]
    with sleeping(54321) as own:
        wanted = {"pid": own, "num_gpus": 1}
        asked = as_nobody(f"{server.lease_url}/acquire", wanted, uid=54321)
        assert (asked.status, list(asked.json)) == (403, ["error"]), asked.body
        assert "user id 54321" in asked.json["error"] and "show a token" in asked.json["error"]
        assert as_nobody(f"{server.lease_url}/jobs", uid=54321).ok() == []
        for path, body in (("/acquire", wanted), ("/reservations", {"gpus": 1, "start_in_seconds": 60})):
            refused = through_socket(server.data, path, body, uid=54321)
            assert refused.status == 401, refused.body
            assert "user id 54321 has no account here" in refused.body.decode()
        given = as_nobody(f"{server.lease_url}/acquire", wanted, *anns, uid=54321).ok()
        assert server.get(f"/runs/{given['job_id']}").ok()["user"] == "ann"


def test_what_never_ends_gets_no_lease(quiet: Desk) -> None:
    """The first process, and the kernel's own threads, not even for root."""
    for pid in (1, *kernel_threads()[:2]):
        for lease in (True, False):
            refused = quiet.server.post("/acquire", {"pid": pid, "num_gpus": 1}, lease=lease)
            assert (refused.status, list(refused.json)) == (400, ["error"]), refused.body
            assert refused.json["error"].startswith(f"pid: {pid} is ")
    assert quiet.status()["gpus_allocated"] == []


def kernel_threads() -> list[int]:
    """None inside a container, where they cannot be seen."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if procs.is_kernel_thread(pid)]


def asked_in_events(server: Server, run_id: str) -> str:
    """Who submitted it, by the stream of events."""
    argv = ["curl", "-sS", "-N", "--max-time", str(PATIENCE_S), f"{server.url}/events?after=0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as stream:
        assert stream.stdout is not None
        told = (json.loads(line[5:]) for line in stream.stdout if line.startswith(b"data:"))
        found = next(one["by"] for one in told if one["type"] == "RunSubmitted" and one["run_id"] == run_id)
        stream.kill()
    return str(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
@pytest.mark.parametrize("tokens", [False, True], ids=["open", "with-tokens"])
def test_command_lines_are_told_to_their_owners(make_server: Callable[..., Server], tokens: bool) -> None:
    """Of running, waiting and ended ones, at either port; root, who is an admin, is told all."""
    server = make_server(nodes=1, gpus=2, env={"ROTA_SHARED_TOKEN": "shared-secret"} if tokens else {})
    server.token = "shared-secret" if tokens else None
    ended = server.submit("true --password=secret", user="nobody" if tokens else "root")
    server.in_state(ended, "completed", "failed")
    running, waiting = server.sleeper(2, user="root"), server.sleeper(2, user="root")
    server.in_state(running, "running")
    with sleeping(NOBODY) as pid:
        own = as_nobody(f"{server.lease_url}/acquire", {"pid": pid, "num_gpus": 0}).ok()["job_id"]
        readers: dict[str, list[str]] = {server.lease_url: []}
        if tokens:
            bens = server.post("/tokens", {"user": "ben", "role": "user"}).ok()["token"]
            readers[server.url] = ["-H", f"X-Auth-Token: {bens}"]
        for url, options in readers.items():
            seen = {job["id"]: job for job in as_nobody(f"{url}/jobs", None, *options).ok()}
            assert set(seen) == {ended, running, waiting, own}
            bare = ["gpus", "id", "num_gpus", "pid", "status", "user"]
            theirs = {own} | ({ended} if tokens else set()) if url == server.lease_url else set()
            for job_id, job in seen.items():
                assert sorted(job) == (sorted([*bare, "cmd"]) if job_id in theirs else bare), job
        for lease in (True, False):
            server.token = "shared-secret" if tokens and not lease else None
            assert all("cmd" in job for job in server.get("/jobs", lease=lease).ok())
        server.token = "shared-secret" if tokens else None


def test_giving_back(desk: Desk) -> None:
    given = desk.acquire({"pid": os.getpid(), "num_gpus": 2}).ok()
    assert given["gpus"] == "0,1"
    tried = desk.server.post("/release?dry_run=true", {"job_id": given["job_id"]}, lease=True)
    assert tried.ok() == {"released": True, "dry_run": True}
    assert desk.free() == 2
    assert desk.server.post("/release", {"job_id": given["job_id"]}, lease=True).ok() == {"released": True}
    until(lambda: desk.free() == 4, "they are free")
    assert alive(os.getpid())
    unknown = desk.server.post("/release", {"job_id": "0123456789ab"}, lease=True)
    assert unknown.status == 404
    assert list(unknown.json) == ["error"]
    for body in (b"", b"{}", b"[]", {"job_id": 5}, {"job_id": None}):
        assert desk.server.post("/release", body, lease=True).status == 400
    job = desk.server.sleeper(1)
    desk.server.in_state(job, "running")
    assert desk.server.post("/release", {"job_id": job}, lease=True).status == 409, "a job is no lease"
    assert desk.server.job(job)["state"] == "running"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
def test_only_its_owner_gives_a_lease_back(desk: Desk) -> None:
    """At the port without tokens the kernel says whose connection it is."""
    mine = desk.acquire({"pid": os.getpid(), "num_gpus": 2}).ok()["job_id"]
    theirs = subprocess.Popen(["sleep", "100000"], user=NOBODY, group=NOBODY, extra_groups=[])
    try:
        nobodys = desk.acquire({"pid": theirs.pid, "num_gpus": 1}).ok()["job_id"]
        for query in ("", "?dry_run=true"):
            refused = as_nobody(f"{desk.server.lease_url}/release{query}", {"job_id": mine})
            assert refused.status == 403, refused.body
            assert list(refused.json) == ["error"]
        assert len(desk.status()["gpus_allocated"]) == 3
        assert as_nobody(f"{desk.server.lease_url}/release", {"job_id": nobodys}).ok() == {"released": True}
        again = desk.acquire({"pid": theirs.pid, "num_gpus": 1}).ok()["job_id"]
        assert desk.server.post("/release", {"job_id": again}, lease=True).ok() == {"released": True}, "root may too"
    finally:
        theirs.kill()
        theirs.wait()
    assert desk.server.post("/release", {"job_id": mine}, lease=True).ok() == {"released": True}


def as_nobody(url: str, body: Any = None, *options: str, uid: int = NOBODY) -> Answer:
    content = [] if body is None else ["-d", json.dumps(body)]
    argv = ["curl", "-sS", "-i", "--max-time", str(PATIENCE_S), *options, *content, url]
    done = subprocess.run(
        argv,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        check=True,
    )
    return parse(done.stdout)


def test_a_dry_run_takes_nothing(desk: Desk) -> None:
    body = {"pid": os.getpid(), "num_gpus": 3}
    for lease in (True, False):
        tried = desk.server.post("/acquire?dry_run=true", body, lease=lease).ok()
        assert (tried["gpus"], tried["dry_run"]) == ("", True)
        assert len(tried["job_id"]) == 12
        assert desk.server.get(f"/runs/{tried['job_id']}").status == 404
    assert (desk.free(), desk.jobs()) == (4, [])
    over = desk.server.post("/acquire?dry_run=true", {"pid": os.getpid(), "num_gpus": 5}, lease=True)
    assert over.status == 400
    assert "only 4 available" in over.json["error"]
    assert desk.server.post("/acquire?dry_run=maybe", body, lease=True).status == 400
    desk.holder(4)
    desk.server.post("/acquire?dry_run=true", body, lease=True).ok()  # what would wait is answered at once


def test_a_lease_is_no_way_to_end_somebodys_process(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=2, env={"ROTA_SHARED_TOKEN": "shared-secret", "ROTA_RUN_AS": "nobody"})
    server.token = "shared-secret"
    anns = server.post("/tokens", {"user": "ann", "role": "user"}).ok()["token"]
    bots = server.post("/tokens", {"user": "bot", "role": "agent", "acts_for": "ann"}).ok()["token"]
    job = server.sleeper(0, user="ben")
    server.in_state(job, "running")
    job_pid = until(lambda: _pid_of(server, job), "it has a pid")
    somebodys = subprocess.Popen(["sleep", "100000"])
    try:
        for token in (anns, bots):
            for pid in (somebodys.pid, job_pid):
                server.token = token
                lease = server.post("/acquire", {"pid": pid, "num_gpus": 0}).ok()["job_id"]
                assert server.delete(f"/queue/{lease}").status == 404, "in this door's words: cannot be cancelled"
                refused = server.post(f"/runs/{lease}/stop?grace_seconds=0")
                assert (refused.status, "not ann's to end" in refused.body.decode()) == (409, True), refused.body
                server.post("/release", {"job_id": lease}).ok()
        server.token = "shared-secret"
        assert somebodys.poll() is None
        assert server.job(job)["state"] == "running"
    finally:
        somebodys.kill()
        somebodys.wait()


def _pid_of(server: Server, job: str) -> int:
    found = [one["pid"] for one in server.get("/jobs").ok() if one["id"] == job]
    return int(found[0] or 0)


def test_with_tokens_the_main_port_asks_for_one(make_server: Callable[..., Server]) -> None:
    """The port of its own stays as it is on loopback: the script sends no token."""
    server = make_server(nodes=1, gpus=2, env={"ROTA_SHARED_TOKEN": "shared-secret"})
    with at(server) as desk:
        refused = server.post("/acquire", {"pid": os.getpid()})
        assert refused.status == 401
        assert "error" in refused.json
        assert desk.srun("true").returncode == 0
        server.token = "shared-secret"
        anns = server.post("/tokens", {"user": "ann", "role": "user"}).ok()["token"]
        server.token = anns
        hers = server.post("/acquire", {"pid": os.getpid(), "num_gpus": 1}).ok()
        assert desk.of(os.getpid())["user"] == "ann", "the token says whose it is"
        server.token = None
        assert server.post("/release", {"job_id": hers["job_id"]}, lease=True).status == 403
        by_script = desk.holder(1)
        server.token = anns
        not_hers = server.post("/release", {"job_id": desk.of(by_script.pid)["id"]})
        assert not_hers.status == 403
        assert server.post("/release", {"job_id": hers["job_id"]}).ok() == {"released": True}
        server.token = "shared-secret"


def test_who_waits_gets_nothing_once_the_token_is_revoked(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=2, env={"ROTA_SHARED_TOKEN": "shared-secret"})
    with at(server) as desk:
        holder = desk.holder(2)
        server.token = "shared-secret"
        anns = server.post("/tokens", {"user": "ann", "role": "user"}).ok()
        body = json.dumps({"pid": os.getpid(), "num_gpus": 1})
        url = f"{server.url}/acquire"
        with subprocess.Popen(
            ["curl", "-sS", "-w", " %{http_code}", "-H", f"X-Auth-Token: {anns['token']}", "-d", body, url],
            stdout=subprocess.PIPE,
        ) as waiting:
            until(lambda: desk.of(os.getpid())["status"] == "queued", "it waits")
            server.delete(f"/tokens/{anns['id']}").ok()
            holder.kill()  # its GPUs are free within less time than it takes to look at tokens again
            out, _ = waiting.communicate(timeout=PATIENCE_S)
        assert out.endswith(b" 401")
        assert b"gpus" not in out
        until(lambda: desk.free() == 2, "nobody holds them")
        assert desk.of(os.getpid())["status"] == "done"


# -- the server goes and comes back ---------------------------------------------------------------------------------
def test_a_lease_outlives_the_server(desk: Desk) -> None:
    holder = desk.holder(3)
    before = desk.of(holder.pid)
    desk.server.kill()
    desk.server.start()
    assert alive(holder.pid)
    assert desk.of(holder.pid) == before
    assert desk.free() == 1
    refused = desk.start("-n", "2", "true")
    until(lambda: desk.of(refused.pid)["status"] == "queued", "two are not free")
    holder.kill()
    assert refused.wait(PATIENCE_S) == 0
    until(lambda: desk.free() == 4, "all are free")


def test_a_holder_that_dies_while_nobody_looks(desk: Desk) -> None:
    holder = desk.holder(4)
    desk.server.kill()
    holder.kill()
    holder.wait()
    desk.server.start()
    until(lambda: desk.free() == 4, "the next server finds out")


def test_a_waiter_finds_its_place_again_by_its_key(desk: Desk) -> None:
    """The first in line loses the server, and is still the first when it comes back."""
    holder = desk.holder(4)
    body = {"pid": os.getpid(), "num_gpus": 4}
    url, key = f"{desk.server.lease_url}/acquire", ["Idempotency-Key: mine"]
    with subprocess.Popen(
        ["curl", "-sS", "-X", "POST", "-H", key[0], "-d", json.dumps(body), url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as first:
        until(lambda: desk.of(os.getpid())["status"] == "queued", "it waits")
        place = desk.of(os.getpid())["id"]
        desk.server.kill()
        assert first.wait(PATIENCE_S) != 0
    desk.server.start()
    with subprocess.Popen(
        ["curl", "-sS", "-X", "POST", "-H", key[0], "-d", json.dumps(body), url], stdout=subprocess.PIPE
    ) as again:
        later = desk.waiter(1)
        assert next(job["id"] for job in desk.jobs() if job["status"] == "queued") == place
        holder.kill()
        out, _ = again.communicate(timeout=PATIENCE_S)
    assert json.loads(out) == {"job_id": place, "gpus": "0,1,2,3"}
    assert desk.of(later.pid)["status"] == "queued"
    repeated = desk.acquire(body, key[0]).ok()
    assert repeated == {"job_id": place, "gpus": "0,1,2,3"}, "the same key is the same lease"
    other = desk.acquire({"pid": os.getpid(), "num_gpus": 1}, key[0])
    assert other.status == 409
    assert "error" in other.json
    desk.server.post("/release", {"job_id": place}, lease=True).ok()
    later.kill()


def test_a_polite_stop_does_not_wait_for_those_who_wait(desk: Desk) -> None:
    desk.holder(4)
    waiter = desk.waiter(1)
    assert desk.server.stop() == 0
    assert waiter.poll() in (None, 75), "it was told, or waits for the next server"
    desk.server.start()


def test_of_a_lease_is_said_what_is_known(server: Server, tmp_path: Path) -> None:
    process = subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE, cwd=tmp_path)
    run_id = server.post("/acquire", {"pid": process.pid, "num_gpus": 1}).ok()["job_id"]
    process.communicate(b"on\n", PATIENCE_S)
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] == "finished", "it is given back")
    run = server.get(f"/runs/{run_id}").ok()
    assert (run["exit_code"], run["error"]) == (None, "released: how its process ended is not known to Rota")
    log = server.get(f"/runs/{run_id}/logs").ok()
    assert (log["content"], log["note"]) == ("", "its output went to its own terminal")
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert run["workdir"] == (str(tmp_path) if run["user"] == me else "/"), "of one's own process"
    mine = server.post("/acquire", {"pid": os.getpid(), "num_gpus": 1}, lease=True).ok()["job_id"]
    assert server.get(f"/runs/{mine}").ok()["workdir"] == os.getcwd()
    server.post("/release", {"job_id": mine}, lease=True).ok()
