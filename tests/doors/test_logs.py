"""Logs by bytes, logs as they grow, the supervisor's own, and what a run leaves behind."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.api.follow import Place
from rota.api.render.links import MOST_KEPT, TAIL_BYTES, Kept, links, wandb_dir
from rota.api.render.text import page
from rota.app.ports import LogChunk
from tests.app.house import PATIENCE_S, until
from tests.doors.people import stream
from tests.doors.server import Server, curl


def finished(server: Server, command: str, **more: Any) -> str:
    made = server.post("/runs", {"name": "a", "command": command, "auto_start": True, **more}).ok()
    run_id: str = made["id"]
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] in ("finished", "failed"), "it has ended")
    return run_id


class Follower:
    """curl, reading a stream message by message."""

    def __init__(self, server: Server, path: str, *headers: str) -> None:
        argv = ["curl", "-sN", "--max-time", str(PATIENCE_S), *(word for one in headers for word in ("-H", one))]
        self.process = subprocess.Popen([*argv, server.url + path], stdout=subprocess.PIPE, text=True)

    def messages(self) -> Iterator[Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("data: "):
                yield json.loads(line[6:])

    def leave(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_bytes_of_a_log(server: Server) -> None:
    none = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    empty = {"content": "", "offset": 0, "total_size": 0, "has_more_before": False, "has_more_after": False}
    assert server.get(f"/runs/{none}/logs").ok() == {**empty, "next_offset": 0}

    run_id = finished(server, "seq 1 50000")
    text = "".join(f"{n}\n" for n in range(1, 50001))
    last = server.get(f"/runs/{run_id}/logs").ok()
    assert last["content"] == text[-10_000:]
    assert (last["offset"], last["total_size"]) == (len(text) - 10_000, len(text))
    assert (last["has_more_before"], last["has_more_after"]) == (True, False)

    read, offset = "", 0
    while offset < len(text):
        piece = server.get(f"/runs/{run_id}/logs?offset={offset}&limit={2**63}").ok()
        assert (piece["offset"], len(piece["content"]) <= 102_400) == (offset, True)
        assert piece["has_more_before"] == (offset > 0)
        read, offset = read + piece["content"], offset + len(piece["content"].encode())
        assert piece["next_offset"] == offset
        assert piece["has_more_after"] == (offset < len(text))
    assert read == text
    assert server.get(f"/runs/{run_id}/logs?offset={2**63}").ok()["content"] == ""
    assert server.get(f"/runs/{run_id}/logs?offset=-{2**63}&limit=3").ok()["content"] == "1\n2"
    assert server.get(f"/runs/{run_id}/logs?attempt=1&limit=2&offset=0").ok()["content"] == "1\n"
    raw = server.get(f"/runs/{run_id}/logs?offset=0&limit=4&encoding=base64").ok()
    assert (raw["content"], raw["encoding"], raw["next_offset"]) == ("MQoyCg==", "base64", 4)
    for query, field in (
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("offset=x", "offset"),
        ("attempt=0", "attempt"),
        ("encoding=x", "encoding"),
    ):
        refused = server.get(f"/runs/{run_id}/logs?{query}")
        assert (refused.status, refused.json["detail"][0]["loc"]) == (422, ["query", field])


@pytest.mark.parametrize(
    "path", ["..", "%2e%2e", "%00", "..%2f..%2fetc", "%2e%2e%2f%2e%2e", "a%0d%0ab", "0123456789ab%00", "x" * 300]
)
@pytest.mark.parametrize("route", ["logs", "sidecar-logs", "artifacts", "logs/stream"])
def test_a_path_that_tries_to_get_out(common: Server, path: str, route: str) -> None:
    answer = curl(f"{common.url}/runs/{path}/{route}", options=["--path-as-is"])
    assert answer.status in (404, 422), answer
    assert b"root:" not in answer.body


def test_no_character_is_cut_in_two() -> None:
    text = "aé€🦀" * 10
    raw = text.encode()
    for limit in range(4, 12):
        read, offset = "", 0
        while offset < len(raw):
            piece: Any = page(LogChunk(raw[offset : offset + limit], offset, len(raw)), complete=True)
            read, offset = read + piece["content"], offset + len(piece["content"].encode())
        assert read == text
    middle: Any = page(LogChunk(raw[2:8], 2, len(raw)), complete=True)
    assert (middle["content"], middle["offset"]) == ("€", 3)
    # what is still being written may yet become a character; what has ended will not
    half = LogChunk(raw[:2], 0, 2)
    assert page(half, complete=False)["content"] == "a"
    assert page(half, complete=False)["has_more_after"] is True
    assert page(half, complete=True)["content"] == "a\ufffd"
    # whoever reads single bytes gets on all the same, and so does a log of no text at all
    assert page(LogChunk(raw[1:2], 1, len(raw)), complete=True)["content"] == "\ufffd"
    assert page(LogChunk(b"\x80" * 8, 4, 20), complete=True)["content"] == "\ufffd" * 8


def test_follow_a_log_to_its_end(server: Server) -> None:
    gate = server.where / "gate"
    os.mkfifo(gate)
    command = f"printf 'first \\303'; cat {gate}; printf '\\251 last'; exit 1"
    run_id = server.post("/runs", {"name": "a", "command": command, "auto_start": True}).ok()["id"]
    until(lambda: server.get(f"/runs/{run_id}/logs").ok()["total_size"] == 7, "it has written something")
    follower = Follower(server, f"/runs/{run_id}/logs/stream")
    messages = follower.messages()
    first = next(messages)
    assert (first["type"], first["content"]) == ("initial", "first ")
    gate.write_text("middle\n")
    rest = list(messages)
    assert {message["type"] for message in rest[:-1]} == {"delta"}
    assert "".join(message["content"] for message in rest[:-1]) == "\ufffdmiddle\n\ufffd last"
    assert rest[-1] == {"type": "done", "status": "failed"}
    follower.leave()
    # whoever comes back says how far it got
    again = server.get(f"/runs/{run_id}/logs/stream", headers=["Last-Event-ID: 1.15"])
    assert stream(again.body)[0]["content"] == " last"
    odd = server.get(f"/runs/{run_id}/logs/stream", headers=["Last-Event-ID: ../../9"])
    assert stream(odd.body)[0]["content"].startswith("first ")
    far = server.get(f"/runs/{run_id}/logs/stream", headers=["Last-Event-ID: 999999.99999999999"])
    assert [message["type"] for message in stream(far.body)] == ["initial", "done"]


def test_follow_from_before_the_start_through_every_attempt(server: Server) -> None:
    command = 'echo "attempt $ROTA_ATTEMPT"; test "$ROTA_ATTEMPT" = 2'
    body = {"name": "a", "command": command, "retry_failures": True, "max_retries": 1}
    run_id = server.post("/runs", body).ok()["id"]
    follower = Follower(server, f"/runs/{run_id}/logs/stream")
    messages = follower.messages()
    assert next(messages)["content"] == ""
    server.post(f"/runs/{run_id}/start").ok()
    rest = list(messages)
    assert [(one["attempt"], one["content"]) for one in rest[:-1]] == [(1, "attempt 1\n"), (2, "attempt 2\n")]
    assert rest[-1] == {"type": "done", "status": "finished"}
    follower.leave()


def test_what_was_written_down_about_a_run(server: Server) -> None:
    run_id = server.post("/runs", {"name": "a", "command": "echo out"}).ok()["id"]
    follower = Follower(server, f"/runs/{run_id}/sidecar-logs/stream")
    messages = follower.messages()
    assert "made ready for anonymous: 1 GPU" in next(messages)["content"]
    server.post(f"/runs/{run_id}/start").ok()
    told = "".join(message.get("content", "") for message in messages)
    follower.leave()
    for words in ("let go by anonymous", "launched on node1:0", "ended (exited, code 0)", "now succeeded"):
        assert words in told
    whole = server.get(f"/runs/{run_id}/sidecar-logs?offset=0").ok()
    assert whole["content"].endswith(told)
    assert len(whole["content"].splitlines()) == 5 or "started, pid" not in whole["content"]
    assert server.get(f"/runs/{run_id}/sidecar-logs?offset=-5&limit=4").ok()["content"] == whole["content"][-5:-1]


def test_what_a_run_leaves_behind(server: Server) -> None:
    command = (
        "cd $ROTA_CHECKPOINT_DIR; echo weights > step1.pt; mkdir more; ln -s /etc/passwd link;"
        ": > $(printf 'odd\\377');"
        "echo 'wandb: Run data is saved locally in wandb/run-1'; echo View run at https://wandb.ai/team/p/runs/r1"
    )
    run_id = finished(server, command)
    found = {item["name"]: item for item in server.get(f"/runs/{run_id}/artifacts").ok()}
    assert {name: item["type"] for name, item in found.items()} == {
        "log of attempt 1": "log",
        "step1.pt": "file",
        "more": "directory",
        "link": "link",
        "odd\N{REPLACEMENT CHARACTER}": "file",
        "run-1": "wandb",
    }
    assert found["run-1"]["path"] == str(server.where / "wandb/run-1")
    assert Path(found["step1.pt"]["path"]).read_text() == "weights\n"
    assert server.get(found["log of attempt 1"]["url"]).ok()["total_size"] == found["log of attempt 1"]["size"]
    shown = server.get(f"/runs/{run_id}").ok()
    assert shown["links"] == [{"kind": "wandb", "url": "https://wandb.ai/team/p/runs/r1"}]
    assert shown["wandb_dir"] == found["run-1"]["path"]
    assert server.get(f"/runs/{server.post('/runs', {'name': 'b', 'command': 'true'}).ok()['id']}/artifacts").ok() == []


@pytest.mark.parametrize(
    "hostile",
    [
        "http://",
        "http://a",
        "http://wandb",
        "http://" + "wandb" * 40 + " ",
        "http://" + "wandb" * 20 + "w" * 100 + ":12345 ",
        "http://" + "/#/experiments" * 20,
        "http://" + "a" * 190 + "/#/experiments/",
        "TensorBoard a at http://" + "a" * 200 + " ",
        "Run data is saved locally in",
    ],
)
def test_no_log_makes_the_search_for_links_long(hostile: str) -> None:
    """It is made with the interpreter held: everybody waits for it. What a plain search takes is the measure, as this
    machine may be busy."""
    tail = (hostile * TAIL_BYTES)[:TAIL_BYTES].encode()

    def took(search: Callable[[bytes], object]) -> float:
        began = time.thread_time()
        search(tail)
        return time.thread_time() - began

    plain = min(took(lambda tail: [re.search(b"no", tail[at:]) for at in range(0, TAIL_BYTES, 200)]) for _ in range(5))
    assert min(took(links) for _ in range(5)) < plain
    assert links(tail) == []


def test_what_was_found_in_a_tail_is_kept() -> None:
    kept, tail = Kept(), b"https://wandb.ai/a Run data is saved locally in x"
    found = kept.search(tail)
    assert found == ([{"kind": "wandb", "url": "https://wandb.ai/a"}], "x")
    assert kept.search(bytes(tail)) is found
    for number in range(MOST_KEPT):
        kept.search(b"%d" % number)
    assert kept.search(tail) is not found


def test_links_are_found() -> None:
    text = (
        "wandb: View run at https://wandb.ai/a/b/runs/c\n"
        "\x1b[1mhttp://wandb.lab:8080/a/b\x1b[0m and 'http://mlflow.lab:5000/#/experiments/3/runs/0af1'\n"
        "TensorBoard 2.15.1 at http://localhost:6006/ (Press CTRL+C to quit)\njavascript:alert(1) file:///etc/passwd\n"
    )
    assert [(one["kind"], one["url"]) for one in links(text.encode())] == [
        ("wandb", "https://wandb.ai/a/b/runs/c"),
        ("wandb", "http://wandb.lab:8080/a/b"),
        ("mlflow", "http://mlflow.lab:5000/#/experiments/3/runs/0af1"),
        ("tensorboard", "http://localhost:6006/"),
    ]
    assert len(links(b"".join(b"https://wandb.ai/%d\n" % n for n in range(1000)))) <= 12
    assert links("wandb: sees über\n".encode() * 3000 + "https://wandb.ai/ü/b".encode()) == [
        {"kind": "wandb", "url": "https://wandb.ai/ü/b"}
    ]
    assert wandb_dir(b"no such words", "/w") is None
    assert wandb_dir(b"Run data is saved locally in /data/x", "/w") == "/data/x"
    assert Place.read("2.17") == Place(2, 17)
    assert Place.read("2") is Place.read("-1.5") is Place.read(None) is None


def test_a_stop_does_not_wait_for_who_follows_a_log(server: Server) -> None:
    run_id = server.post("/runs", {"name": "a", "command": "echo on; sleep 1000", "auto_start": True}).ok()["id"]
    follower = Follower(server, f"/runs/{run_id}/logs/stream")
    messages = follower.messages()
    while "on" not in next(messages).get("content", ""):
        pass
    assert server.stop() == 0
    assert "done" not in [message["type"] for message in messages], "it may come back to the next server"
    follower.leave()
    assert "Traceback" not in server.said()
    server.start()
    server.post(f"/runs/{run_id}/stop").ok()


LEASE = """
import fcntl, os, select, signal, sys
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's word that somebody opens the leased file
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("holding", flush=True)
while not select.select([0], [], [], 0.001)[0]:
    try:
        fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("leased", flush=True)
        sys.stdin.read()
    except OSError as error:
        refused = error
else:
    print("refused:", refused, flush=True)
"""
LEASE_IN_PERL = "$SIG{IO} = 'IGNORE'; print fcntl(STDOUT, 1024, 1) ? 'leased' : 'refused', qq(\\n)"


class Holder:
    """A process that keeps a file open, and takes a write lease on it as soon as the kernel lets it."""

    def __init__(self, path: str, *account: int) -> None:
        argv = [sys.executable, "-c", LEASE, path, *map(str, account)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def word(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> str:
        return self.process.communicate()[0].strip()


def leased(path: Path) -> str:
    """What the kernel says of a lease on this file: ACTIVE, BREAKING (somebody wants to open it) or nothing."""
    inode = f":{path.stat().st_ino} "
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if inode in line]
    return next((words[2] for words in lines if words[1] == "LEASE"), "")


def test_a_leased_log_holds_up_nobody(server: Server) -> None:
    """The kernel lets whoever opens a leased file wait for 45 s: readers of such a log are told to come back."""
    run_id = finished(server, "echo before")
    log = server.data / "attempts" / f"{run_id}-1" / "log"
    holder = Holder(str(log))
    assert (holder.word(), holder.word()) == ("holding", "leased")
    readers = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S) for _ in range(55)]
    for number, reader in enumerate(readers):
        reader.request("GET", f"/runs/{run_id}" + ("/logs" if number < 45 else ("/artifacts", "")[number % 2]))
    follower = Follower(server, f"/runs/{run_id}/logs/stream")
    until(lambda: leased(log) == "BREAKING", "somebody reads the leased log")
    # everybody else, meanwhile
    other = finished(server, "echo other")
    assert server.get(f"/runs/{other}/logs").ok()["content"] == "other\n"
    for path in ("/runs", "/queue", f"/runs/{other}", f"/runs/{other}/artifacts", "/wild/v2/system-health"):
        server.get(path).ok()
    # and its own readers, with an answer that says what to do
    codes = [reader.getresponse().status for reader in readers]
    refused = server.get(f"/runs/{run_id}/logs")
    shown = server.get(f"/runs/{run_id}").ok()
    assert leased(log) == "BREAKING", "all of that took longer than the lease held"
    assert codes == [503] * 45 + [200] * 10
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "lease" in refused.json["detail"]
    assert shown["status"] == "finished"
    # as soon as it is let go all is there again, also for who followed
    holder.let_go()
    for reader in readers:
        reader.close()
    assert server.get(f"/runs/{run_id}/logs").ok()["content"] == "before\n"
    messages = list(follower.messages())
    follower.leave()
    assert "".join(message.get("content", "") for message in messages) == "before\n"
    assert messages[-1] == {"type": "done", "status": "finished"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run a job as another account")
@pytest.mark.skipif(shutil.which("perl") is None, reason="needs a language that every account may run")
def test_another_accounts_job_cannot_lease_its_log(server: Server) -> None:
    """Neither the job nor another process of its account, while it runs or afterwards."""
    command = f"id -un; perl -e {shlex.quote(LEASE_IN_PERL)}; exec sleep 1000"
    body = {"name": "a", "command": command, "workdir": "/", "account": "nobody", "auto_start": True}
    run_id = server.post("/runs", body).ok()["id"]
    log = server.data / "attempts" / f"{run_id}-1" / "log"
    until(lambda: log.exists() and log.stat().st_size > len("nobody\n"), "it has tried")
    assert log.read_text() == "nobody\nrefused\n"
    until((log.parent / "pid").exists, "it has a pid")
    task = json.loads((log.parent / "pid").read_text())
    account = pwd.getpwnam("nobody")
    outside = Holder(f"/proc/{task['tasks'][0]}/fd/1", account.pw_uid, account.pw_gid)
    assert outside.word() == "holding"
    server.post(f"/runs/{run_id}/stop?grace_seconds=0").ok()
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] == "stopped", "it has ended")
    facts = log.stat()
    assert (facts.st_uid, facts.st_mode & 0o777) == (0, 0o600)
    for _ in range(10):
        assert server.get(f"/runs/{run_id}/logs").ok()["content"] == "nobody\nrefused\n"
    assert leased(log) == ""
    assert outside.let_go().startswith("refused")
