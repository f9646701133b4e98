"""Tokens in the hands of a person: made, used, revoked; and nowhere to be found in what the commands leave behind."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.lab import RUN, Lab
from tests.doors.server import curl

OTHER = "canary-7d15b0c2"  # a token of another server, in the caller's environment as well
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server of its own: with its first token it asks everybody on TCP for one."""
    with Lab(tmp_path_factory.mktemp("closed")) as made:
        yield made


def far(lab: Lab, home: Path, **more: str) -> dict[str, str]:
    """The environment of somebody who has nothing but the server's address."""
    env = {name: value for name, value in lab.env.items() if name not in ("ROTA_DATA_DIR", "USER")}
    return {**env, "HOME": str(home), "ROTA_URL": lab.server.url, **more}


def test_from_a_token_to_a_run_of_ones_own(closed: Lab, tmp_path: Path) -> None:
    """An admin makes a token on the socket; ann logs in over TCP, and is ann from then on."""
    token = closed.out("token", "create", "--user", "ann", "--expires", "30d", "--note", "laptop", "-q").strip()
    env = far(closed, tmp_path)
    assert closed.rota("queue", env=env).returncode == 77
    wrong = closed.rota("login", "--stdin", env=env, given=b"rota_wrong")
    assert wrong.returncode == 77 and not (tmp_path / ".config" / "rota" / "token").exists()
    assert closed.out("login", "--stdin", env=env, given=token.encode() + b"\n") == "ann (user)\n"
    file = tmp_path / ".config" / "rota" / "token"
    assert file.read_text() == token + "\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "ann (user)" in closed.out("whoami", env=env)
    assert closed.out("whoami", env=env).endswith(", by the token in ~/.config/rota/token\n")
    assert json.loads(closed.out("whoami", "--json", env=env))["token_from"] == str(file)
    assert "by the token in ROTA_TOKEN" in closed.out("whoami", env={**env, "ROTA_TOKEN": token})
    worse = closed.rota("login", "rota_wrong", env=env)
    assert worse.returncode == 77 and b"the token on the command line is not valid" in worse.stderr
    assert str(file).encode() not in worse.stderr and file.read_text() == token + "\n", "it is not that one"
    denied = closed.rota("token", "list", env=env)
    assert denied.returncode == 77 and b"may not" in denied.stderr
    listed = [one for one in closed.json("token", "list") if one["note"] == "laptop"]
    assert [one["user"] for one in listed] == ["ann"] and token not in str(listed)
    assert closed.rota("token", "create", "--user", "no spaces allowed").returncode == 2
    nobody = closed.rota("token", "create", "--user", "")
    assert nobody.returncode == 2 and b"user: use 1 to 64 letters" in nobody.stderr
    closed.out("token", "revoke", listed[0]["id"])
    assert closed.rota("queue", env=env).returncode == 77
    missing = closed.rota("token", "revoke", "nothing")
    assert missing.returncode == 75 and b"rota token list" in missing.stderr


def test_an_agent_is_made_for_a_person(closed: Lab) -> None:
    for given in (("--role", "agent"), ("--for", "ann")):
        refused = closed.rota("token", "create", "--user", "scout", *given)
        assert refused.returncode == 2
        assert b"--role agent" in refused.stderr and b"--for PERSON" in refused.stderr, "in words of this command"
    made = closed.json("token", "create", "--user", "scout", "--role", "agent", "--for", "ann", "--json")
    assert made["acts_for"] == "ann"


def test_a_token_through_a_pipe_needs_no_option(closed: Lab, tmp_path: Path) -> None:
    token = closed.out("token", "create", "--user", "ann", "-q").strip()
    done = closed.rota("login", env=far(closed, tmp_path), given=token.encode() + b"\n")
    assert (done.returncode, done.stdout) == (0, b"ann (user)\n") and b"Token" not in done.stderr
    wrong = closed.rota("login", env=far(closed, tmp_path), given=b"rota_wrong\n")
    assert wrong.returncode == 77 and b"the token from stdin is not valid" in wrong.stderr
    assert closed.rota("login", env=far(closed, tmp_path)).returncode == 2, "nothing came"


def test_logout_is_the_way_back_from_login(closed: Lab, tmp_path: Path) -> None:
    """On the server's own machine, where the stored token hides who one is by one's account."""
    token = closed.out("token", "create", "--user", "ann", "-q").strip()
    env = {**closed.env, "HOME": str(tmp_path)}
    closed.out("login", "--stdin", env=env, given=token.encode())
    assert "ann (user)" in closed.out("whoami", env=env)
    assert closed.out("logout", env=env) == "removed the token in ~/.config/rota/token\n"
    assert "root (admin)" in closed.out("whoami", env=env)
    again = closed.rota("logout", env={**env, "ROTA_TOKEN": token})
    assert (again.returncode, again.stdout) == (0, b"no token is stored in ~/.config/rota/token\n")
    assert b"ROTA_TOKEN is still set" in again.stderr and token.encode() not in again.stderr
    homeless = {name: value for name, value in env.items() if name != "HOME"}
    assert closed.out("logout", env=homeless) == "no token is stored: there is no home directory\n"
    (tmp_path / ".config" / "rota" / "token").mkdir()
    stuck = closed.rota("logout", env=env)
    assert stuck.returncode == 75 and b"cannot remove ~/.config/rota/token" in stuck.stderr


def test_for_whom_an_agent_acts_is_in_the_list(closed: Lab) -> None:
    closed.out("token", "create", "--user", "robot", "--role", "agent", "--for", "ann", "-q")
    head, *rows = closed.out("token", "list").splitlines()
    assert head.split()[:4] == ["TOKEN", "USER", "ROLE", "FOR"]
    assert {tuple(row.split()[1:4]) for row in rows} >= {("robot", "agent", "ann")}


def test_a_person_without_an_account_is_spoken_of_where_it_matters(closed: Lab) -> None:
    """A server that is root starts everybody's runs under their own account."""
    made = closed.rota("token", "create", "--user", "no-account-here")
    said = b"note: no-account-here cannot run anything here" in made.stderr
    assert (made.returncode, said) == (0, os.getuid() == 0)


def test_a_lease_shows_its_token_where_one_is_needed(closed: Lab, tmp_path: Path) -> None:
    token = closed.out("token", "create", "--user", "root", "-q").strip()
    env = far(closed, tmp_path)
    ended = closed.run(*RUN, "true", env=env)
    assert ended.returncode == 77
    assert b"ROTA_TOKEN" in ended.stderr
    assert closed.run(*RUN, "true", env={**env, "ROTA_TOKEN": token}).returncode == 0


def test_the_callers_token_travels_with_no_run(closed: Lab, tmp_path: Path) -> None:
    """Through every command that sends an environment, from inside another job; then the marks are looked for in what
    the jobs saw, in the answers, in the events and in every file of the server."""
    token = closed.out("token", "create", "--user", "root", "--role", "admin", "-q").strip()
    around = {"SLURM_JOB_ID": "outer", "ROTA_JOB_ID": "outer", "CUDA_VISIBLE_DEVICES": "outer", "ROTA_GPUS": "outer"}
    env = far(closed, tmp_path, ROTA_TOKEN=token, RESEARCH_AGENT_USER_AUTH_TOKEN=OTHER, MINE="kept", **around)
    (tmp_path / "show.py").write_text(SHOW)
    line = f"{sys.executable} {tmp_path}/show.py"

    def rota(*words: str) -> str:
        return closed.out(*words, env=env, cwd=tmp_path)

    made = [rota("submit", "-q", "-G", "1", "--wait", "--shell", line).strip()]
    sweep = rota("sweep", "grid", "--base", f"{line} #", "-p", "a=1", "-G", "1", "--json")
    made += json.loads(sweep)["run_ids"]
    batch = closed.run(sys.executable, "-m", "rota.cli.slurm.sbatch", "--parsable", "-G1", "--wrap", line, env=env)
    made.append(batch.stdout.decode().strip())
    for run_id in made:
        closed.wait_for(run_id, "finished")
        seen = json.loads(rota("logs", run_id))
        assert seen["MINE"] == "kept"
        assert seen["ROTA_JOB_ID"] == seen["SLURM_JOB_ID"] == run_id
        assert "outer" not in seen.values()
        assert "ROTA_TOKEN" not in seen

    last = rota("submit", "-q", "--held", "true").strip()
    events = ""
    with closed.client() as client:
        for event in client.events(0):
            events += json.dumps(event)
            if last in events:
                break
    assert all(run_id in events for run_id in made)
    header = [f"X-Auth-Token: {token}"]
    answers = [curl(f"{closed.server.url}{path}", headers=header).body for path in ("/runs", "/queue", *_of(made))]
    assert all(run_id.encode() in answers[0] for run_id in made)
    stored = {path: path.read_bytes() for path in closed.server.data.rglob("*") if path.is_file()}
    assert any(b"kept" in content for content in stored.values()), "the search below would find what is there"
    for secret in (token.encode(), OTHER.encode()):
        assert not [answer for answer in (events.encode(), *answers) if secret in answer]
        assert [path for path, content in stored.items() if secret in content] == []


def _of(run_ids: list[str]) -> list[str]:
    return [f"/{door}/{run_id}" for run_id in run_ids for door in ("runs", "queue")]


@pytest.mark.parametrize(
    "command", [["submit"], ["submit", "--export", "NONE"], ["sweep", "x", "-p", "a=1", "--base", "x"]]
)
def test_a_token_that_is_named_is_refused(closed: Lab, tmp_path: Path, command: list[str]) -> None:
    env = far(closed, tmp_path, ROTA_TOKEN=OTHER)
    done = closed.rota(*command, "-e", "ROTA_TOKEN", *(["true"] if command[0] == "submit" else []), env=env)
    assert done.returncode == 2
    assert b"ROTA_TOKEN never goes along" in done.stderr
    assert OTHER.encode() not in done.stdout + done.stderr
