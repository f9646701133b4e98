"""Secrets with a mark on them go through every door; afterwards the mark is looked for everywhere it must not be."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from rota.api.tokens import hash_of
from tests.app.house import SOURCES, locked, until
from tests.doors.server import PROGRAM, HeldPorts
from tests.security.kit import SHARED, Lab, ask, processes
from tests.security.test_matrix import JOB, RUN, TABLE

ENV_SECRET = "canary-env-5a1c09e7"


class Story:
    """A day at the lab: everybody logs in, works, errs and looks."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        link: str = lab.ask("POST", f"/tokens/{lab.ids['ann']}/link", by="root").ok()["path"]
        self.code = link.partition("code=")[2]
        answer = lab.ask("GET", link, by="nobody")
        self.cookie = answer.header("set-cookie").partition(";")[0].partition("=")[2].strip('"')
        self.unused: str = (
            lab.ask("POST", f"/tokens/{lab.ids['ben']}/link", by="root").ok()["path"].partition("code=")[2]
        )
        secret = {
            "env": {"API_KEY": ENV_SECRET},
            "workspace": {"commit": "c", "env": {"KEY": ENV_SECRET}},
            "workdir": "/",
        }
        self.runs = [
            self.run({**RUN, **secret, "command": "exit 3"}),
            self.run({**RUN, **secret, "command": "sleep 1000", "gpu_count": 1}),
            self.run({**RUN, **secret, "command": "no-such-command", "max_retries": 1}),
            lab.ask("POST", "/queue/submit", {**JOB, **secret, "gpu_count": 0}, by="bot").ok()["job_id"],
        ]
        lab.ask("POST", f"/runs/{self.runs[0]}/rerun", {"auto_start": True}, by="ann").ok()
        until(lambda: lab.ask("GET", f"/runs/{self.runs[1]}").ok()["status"] == "running", "it runs")
        until(lambda: lab.ask("GET", f"/runs/{self.runs[0]}").ok()["status"] == "failed", "it failed")
        self.err()

    def run(self, body: dict[str, Any]) -> str:
        made: str = self.lab.ask("POST", "/runs", {"auto_start": True, "gpu_count": 0, **body}, by="ann").ok()["id"]
        return made

    def err(self) -> None:
        """What goes wrong with secrets in hand."""
        lab, secrets = self.lab, (*self.tokens, self.cookie, self.code)
        for secret in secrets:
            for headers in (
                {"cookie": f"rota_session={secret}"},
                {"authorization": f"Bearer x{secret}"},
                {"host": secret},
            ):
                lab.ask("GET", "/runs", by="nobody", headers=headers)
            ask(lab.port, "GET", f"/runs/{secret}", token=secret)
            ask(lab.port, "GET", f"/login?code=x{secret}")
            ask(lab.port, "GET", f"/ws?token={secret}", headers={"upgrade": "websocket", "connection": "upgrade"})
        for body in (b"{", {"env": {"API_KEY": ENV_SECRET}}, {**RUN, "env": {"A": ENV_SECRET, "B": 5}}, [ENV_SECRET]):
            lab.ask("POST", "/runs", body, by="ann")
            lab.ask("POST", "/queue/submit", body, by="ann")
        with locked(lab.data / "rota.db"):
            busy = lab.ask("POST", "/runs", {**RUN, "env": {"API_KEY": ENV_SECRET}}, by="ann", timeout_s=100)
            assert busy.status in (200, 503), busy.body
        with socket.create_connection(("127.0.0.1", lab.port)) as odd:
            odd.sendall(f"GET /{SHARED} HTTP/9.9\r\nx-auth-token: {SHARED}\r\n\r\n".encode())
            odd.recv(1000)

    @property
    def tokens(self) -> list[str]:
        return [SHARED, *self.lab.tokens.values()]

    @property
    def keys(self) -> list[str]:
        """What opens the door."""
        return [*self.tokens, self.cookie, self.code, self.unused]

    def found_in(self, text: bytes, *more: str) -> list[str]:
        return [secret for secret in (*self.keys, *more) if secret.encode() in text]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Any:
    env = {"ROTA_RUN_AS": "nobody", "ROTA_LOGIN_TRIES": "100000"}
    with Lab(tmp_path_factory.mktemp("secrets"), env=env, flags=["--verbose"]) as lab:
        assert isinstance(lab, Lab)
        told = Story(lab)
        yield told
        lab.ask("POST", f"/runs/{told.runs[1]}/stop").ok()
        lab.stop()
        assert told.found_in(lab.log.read_bytes(), ENV_SECRET) == [], "also of what it says at its end"


def test_not_in_what_the_server_says(story: Story) -> None:
    said = story.lab.log.read_bytes()
    assert b"WARNING" in said, "it had something to say"
    assert story.found_in(said, ENV_SECRET) == []


def test_not_in_any_answer_to_others(story: Story) -> None:
    looked = 0
    for route in TABLE:
        method, _, path = route.partition(" ")
        if method != "GET" or path in ("/events", "/static/{name}") or path.endswith("/stream"):
            continue
        for run in story.runs if "{run_id}" in path or "{job_id}" in path else story.runs[:1]:
            names = {"run_id": run, "job_id": run, "sweep_id": run, "session_id": run, "skill_id": "x"}
            for by in ("ben", "eve"):
                answer = story.lab.ask("GET", path.format(**names), by=by)
                assert story.found_in(answer.body, ENV_SECRET) == [], (path, by)
                looked += 1
    assert looked > 100
    owner = story.lab.ask("GET", f"/runs/{story.runs[0]}", by="ann").body
    assert ENV_SECRET.encode() in owner, "its owner sees it: the search above would have found it"
    assert story.found_in(owner) == []


def test_not_in_the_list_of_tokens(story: Story) -> None:
    listed = story.lab.ask("GET", "/tokens").body
    assert story.found_in(listed) == []
    assert not any(hash_of(token).encode() in listed for token in story.tokens)


def test_not_in_any_event(story: Story) -> None:
    lab = story.lab
    last = lab.ask("POST", "/runs", {"name": "the-last-event", "command": "true"}, by="ben").ok()["id"]
    for by in ("ben", "root"):
        headers = {"X-Auth-Token": lab.tokens[by]}
        with connect(f"ws://127.0.0.1:{lab.port}/ws?after=0", open_timeout=60, additional_headers=headers) as watch:
            got = ""
            while last not in got:
                got += str(watch.recv(timeout=60))
        assert got.count('"seq"') > 20
        assert story.found_in(got.encode(), ENV_SECRET) == []
        assert not any(hash_of(token) in got for token in story.tokens)
        assert '"kind":"token"' not in got


def test_not_in_the_list_of_processes(story: Story) -> None:
    assert story.lab.process is not None
    lines = processes()
    assert story.lab.process.pid in lines
    mine = os.getpid()  # whose command line may say anything
    for pid, line in lines.items():
        if pid != mine:
            assert story.found_in(line, ENV_SECRET) == [], line


def test_a_job_gets_its_own_environment_and_not_the_servers(story: Story) -> None:
    body = {**RUN, "command": "env; cat /proc/$PPID/environ", "env": {"API_KEY": ENV_SECRET}, "workdir": "/"}
    run = story.run(body)
    until(lambda: story.lab.ask("GET", f"/runs/{run}").ok()["status"] in ("finished", "failed"), "it has ended")
    log = story.lab.ask("GET", f"/runs/{run}/logs?offset=0&limit=100000", by="ann").ok()["content"]
    assert f"API_KEY={ENV_SECRET}" in log
    assert story.found_in(log.encode()) == []
    assert "RESEARCH_AGENT_USER_AUTH_TOKEN" not in log


def files(where: Path) -> list[tuple[Path, os.stat_result, bytes]]:
    found = []
    for directory, _, names in os.walk(where):
        for name in names:
            path = Path(directory) / name
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode):
                found.append((path, facts, path.read_bytes()))
    return found


def test_on_disk_tokens_are_hashes_and_environments_are_the_servers_alone(story: Story) -> None:
    everything = files(story.lab.data)
    assert len(everything) > 10
    for path, facts, content in everything:
        assert story.found_in(content) == [], path
        if ENV_SECRET.encode() in content and path.name != "log":
            assert facts.st_mode & 0o077 == 0, f"{path} is {stat.filemode(facts.st_mode)}"
    hashes = b"".join(content for path, _, content in everything if path.name.startswith("rota.db"))
    assert all(hash_of(token).encode() in hashes for token in story.lab.tokens.values()), "which is what is kept"
    for name in ("session.key", "rota.db"):
        assert (story.lab.data / name).stat().st_mode & 0o077 == 0, name


def test_the_first_token_is_in_a_file_of_ones_own(tmp_path: Path) -> None:
    """`rota up` prints where it lies and a link that is good once; the token itself is shown nowhere."""
    port, lease = ports = HeldPorts(2)
    argv = [*PROGRAM, "up", "--port", str(port), "--lease-port", str(lease), "--data-dir", str(tmp_path / "data")]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": SOURCES}
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen([*argv, "--nodes", "1", "--gpus", "1"], env=env, stdout=out, stderr=out) as up,
    ):
        try:
            until(lambda: b"/login?code=" in log.read_bytes(), "it says how to log in")
            place = tmp_path / "data" / "admin.token"
            token = place.read_text().strip()
            assert place.stat().st_mode & 0o777 == 0o600
            assert ask(port, "GET", "/whoami", token=token).ok()["role"] == "admin"
            assert ask(port, "GET", "/whoami").status == 401
            code = log.read_text().partition("/login?code=")[2].split()[0]
            assert ask(port, "GET", f"/login?code={code}").status == 303
            assert ask(port, "GET", f"/login?code={code}").status == 401
            assert token not in log.read_text()
            assert token.encode() not in processes()[up.pid]
            assert all(token.encode() not in content for path, _, content in files(tmp_path / "data") if path != place)
        finally:
            up.terminate()
            up.wait(60)
            ports.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://rota:canary-pw-11@127.0.0.1:1/rota", "postgresql://rota:canary-pw-11@nowhere.invalid/rota",
        "postgresql://rota:canary-pw-11@127.0.0.1:notaport/rota", "mysql://rota:canary-pw-11@127.0.0.1/rota",
        "postgres://rota:canary-pw-11@[::1/rota", "canary-pw-11://x",
    ],
)  # fmt: skip
def test_the_password_of_a_database_is_not_told(tmp_path: Path, url: str) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": SOURCES, "ROTA_DATABASE_URL": url}
    argv = [
        *PROGRAM,
        "serve",
        "--port",
        "0",
        "--lease-port",
        "0",
        "--data-dir",
        str(tmp_path / "d"),
        "--nodes",
        "1",
        "--gpus",
        "1",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, timeout=100, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 75, said
    assert b"Traceback" not in said
    if not url.startswith("canary"):
        assert b"canary-pw-11" not in said


def test_a_bad_token_variable_is_not_shown(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": SOURCES,
        "ROTA_SHARED_TOKEN": "canary\x01token",
    }
    done = subprocess.run([*PROGRAM, "serve", "--port", "0"], env=env, capture_output=True, timeout=100, check=False)
    assert done.returncode == 2
    assert b"ROTA_SHARED_TOKEN" in done.stderr
    assert b"canary" not in done.stdout + done.stderr
