"""How commands exit when something is wrong: a known code, one line that says what to do, never a traceback."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.cli import checkup
from rota.cli.main import COMMANDS, main
from tests.client.stub import closed_port, ok, stub

KNOWN = {0, 1, 2, 69, 75, 77}
TALKING = [
    ["queue"], ["show", "0123456789ab"], ["logs", "0123456789ab"], ["cancel", "0123456789ab"], ["gpus"], ["nodes"],
    ["hold", "0123456789ab"], ["release", "0123456789ab"], ["priority", "0123456789ab", "high"], ["usage"], ["policy"],
    ["explain", "0123456789ab"], ["eta", "0123456789ab"], ["rerun", "0123456789ab"], ["submit", "true"], ["whoami"],
    ["sweep", "x", "--base", "true", "-p", "a=1"], ["token", "list"],
]  # fmt: skip


def call(*words: str, **env: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, list(words), env={"ROTA_TOKEN": None, "ROTA_URL": None, **env})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("words", TALKING, ids=" ".join)
def test_no_server_is_69_and_says_what_to_do(words, tmp_path):
    code, out, err = call(*words, ROTA_URL=f"http://127.0.0.1:{closed_port()}", HOME=str(tmp_path))
    assert (code, out) == (69, "")
    assert err.startswith("rota: no server answers at http://127.0.0.1:") and "rota up" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", TALKING, ids=" ".join)
@pytest.mark.parametrize(("status", "expected"), [("401 No", 77), ("403 No", 77), ("409 No", 75), ("422 No", 2)])
def test_a_refusal_by_its_kind(words, status, expected):
    body = {"detail": [{"loc": ["body", "gpu_count"], "msg": "too many"}]} if status[:3] == "422" else {"detail": "why"}
    with stub(lambda asked: ok(body, status)) as server:
        code, out, err = call(*words, ROTA_URL=server.url, ROTA_TOKEN="canary-token")
    assert (code, out) == (expected, "")
    assert err.startswith("rota: ") and "canary" not in err
    assert "gpu_count" in err if expected == 2 else "why" in err


def test_what_is_no_rota_server_is_69():
    with stub(lambda asked: b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>") as server:
        assert call("queue", ROTA_URL=server.url)[0] == 69


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "unix://relative", "http://h:0"])
def test_an_address_that_is_none_is_2(url):
    code, _, err = call("queue", "--server", url)
    assert code == 2 and url in err


def test_a_token_file_that_others_can_read_is_not_used(tmp_path):
    file = tmp_path / "rota" / "token"
    file.parent.mkdir()
    file.write_text("canary")
    file.chmod(0o644)
    code, _, err = call("queue", XDG_CONFIG_HOME=str(tmp_path), ROTA_URL="http://127.0.0.1:1")
    assert code == 2 and "chmod 600" in err and "canary" not in err


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["--json", "--", "-G", "-q", "-1", "0123456789ab", "--watch", "-p", "a=1", "--depends", "x", "-t",
                     "nan", "--env", "=", "--server", "--attempt", "99999999999999999999", "--tail", "\0", "é\udcff"]),
)  # fmt: skip
SAFE = sorted(set(COMMANDS) - {"run", "srun", "local", "up", "serve", "service", "shims", "top", "skill", "login"})


@settings(max_examples=60)
@given(st.sampled_from(SAFE), st.lists(WORDS, max_size=5))
def test_any_line_ends_with_a_known_code(command, words):
    """No server answers, and --watch may not be reached without one."""
    words = [word for word in words if word != "--watch"]
    env = {"ROTA_URL": "http://127.0.0.1:1", "ROTA_DATA_DIR": "/nonexistent/rota", "HOME": "/nonexistent"}
    code, _, err = call(command, *words, **env)
    assert code in KNOWN, (command, words, err)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name):
    code, out, _ = call(name, "--help")
    assert code == 0 and "usage: " in out.lower()


def test_the_list_of_commands_names_them_all():
    code, out, _ = call("--help")
    assert code == 0 and all(f"\n  {name} " in out for name in COMMANDS)


def test_tokens_without_a_server(tmp_path: Path) -> None:
    env = {"ROTA_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    code, out, err = call("token", "create", "--user", "ann", "--role", "admin", **env)
    assert code == 0 and out.startswith("rota_"), err
    code, listed, _ = call("token", "list", "--json", **env)
    assert code == 0 and '"user": "ann"' in listed and out.strip() not in listed
    token_id = listed.partition('"id": "')[2].partition('"')[0]
    assert call("token", "revoke", token_id, **env)[0] == 0
    assert "revoked" in call("token", "list", **env)[1]
    assert call("token", "revoke", "nothing", **env)[0] == 75
    assert call("token", "create", "--user", "shared", **env)[0] == 75


def test_doctor_without_a_server_exits_1_and_says_what_next(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    env = {
        "ROTA_DATA_DIR": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        "ROTA_URL": f"http://127.0.0.1:{closed_port()}",
    }
    code, out, _ = call("doctor", **env)
    assert code == 1
    assert "fail  server" in out and "rota up" in out
    assert "fail  data directory" in out and "chmod go-w" in out


@pytest.mark.parametrize("words", [["queue"], ["run", "true"]])
def test_a_socket_that_another_account_may_not_open_is_no_missing_server(tmp_path: Path, words: list[str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    # root may open everything, so the kernel's answer is made up
    program = (
        "import socket, sys\n"
        "def connect(self, address):\n"
        "    raise PermissionError(13, 'Permission denied')\n"
        "socket.socket.connect = connect\n"
        "from rota.cli.start import main\n"
        "sys.exit(main())\n"
    )
    sources = str(Path(checkup.__file__).parents[2])
    env = {**os.environ, "ROTA_URL": f"unix://{closed}/rota.sock", "PYTHONPATH": sources, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], check=False, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 69, done.stderr
    assert f"unix://{closed}/rota.sock is not open to your account: permission denied" in done.stderr
    assert "http://" in done.stderr and "rota login" in done.stderr and "rota up" not in done.stderr


def test_doctor_finds_a_store_that_no_server_would_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {
        "ROTA_DATA_DIR": str(data),
        "HOME": str(tmp_path),
        "ROTA_URL": f"http://127.0.0.1:{closed_port()}",
    }
    assert call("token", "create", "--user", "ann", **{**env, "ROTA_URL": ""})[0] == 0
    assert "fail  store" not in call("doctor", **env)[1]
    (data / "rota.db").write_bytes(b"garbage" * 100)
    assert "is not a SQLite database; restore it from a backup" in call("doctor", **env)[1]
    (data / "rota.db").unlink()
    assert "is gone or empty" in call("doctor", **env)[1]


def test_doctor_says_how_many_connections_the_descriptors_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 20_000))
    plenty = checkup._descriptors()
    assert plenty.level == checkup.OK and "17952 connections, 11968 of one account" in plenty.text
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    few = checkup._descriptors()
    assert few.level == checkup.WARN and "768 connections" in few.text and "LimitNOFILE" in few.next_step


def test_config_says_where_each_setting_came_from_and_no_secret(tmp_path: Path) -> None:
    env = {"ROTA_PORT": "1234", "RESEARCH_AGENT_USER_AUTH_TOKEN": "canary", "HOME": str(tmp_path)}
    code, out, _ = call("config", "show", "--origin", **env)
    assert code == 0 and "canary" not in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["port"] == ["1234", "ROTA_PORT"]
    assert rows["shared_token"] == ["(set)", "RESEARCH_AGENT_USER_AUTH_TOKEN"]
    assert rows["client.token"] == ["(set)", "RESEARCH_AGENT_USER_AUTH_TOKEN"]
    assert call("config", "show", ROTA_PORT="many")[0] == 2


def test_the_client_loads_nothing_heavy() -> None:
    """What a submit has to import decides how long it takes."""
    import subprocess

    code = (
        "import sys; import rota.cli.main, rota.cli.commands.submit, rota.cli.workspace, rota.client.sync; "
        "heavy = {'asyncio', 'ssl', 'http.client', 'urllib.request', 'rich', 'fastapi', 'pydantic', 'sqlalchemy', "
        "'subprocess', 'dataclasses', "
        "'rota.config', 'rota.main', 'rota.core.run', 'rota.app'}; print(sorted(heavy & set(sys.modules)))"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, check=False, timeout=60)
    assert done.stdout == b"[]\n", (done.stdout, done.stderr)


def test_the_doctor_finds_cgroup_v2_beside_v1() -> None:
    """There it is mounted below /sys/fs/cgroup, not at it."""
    mounted = any(line.split()[2] == "cgroup2" for line in Path("/proc/self/mounts").read_text().splitlines())
    assert ("no cgroup v2 here" not in checkup._cgroup().text) == mounted


def test_the_doctor_does_not_say_of_a_server_what_holds_for_this_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that answers may be root's, which may use cgroups; `limits` tells of that one."""
    monkeypatch.setattr(checkup, "_unified_mount", lambda: "/sys/fs/cgroup")
    monkeypatch.setattr(os, "access", lambda *asked: False)
    assert "this account: a server that it starts" in checkup._cgroup().text


EMPTY = [
    ["serve", "--data-dir", ""],
    ["up", "--data-dir", ""],
    ["serve", "--workdir", ""],
    ["doctor", "--data-dir", ""],
    ["local", "--data-dir", "", "--", "true"],
    ["history", "--data-dir", ""],
    ["token", "list", "--data-dir", ""],
    ["rerun", "--restore", "", "6afc2efb01ba"],
    ["submit", "-C", "", "--", "true"],
    ["sweep", "--chdir", "", "--", "true"],
    ["shims", "install", "--dir", ""],
    ["skill", "--install", ""],
    ["service", "install", "--root", ""],
]


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_path_is_refused(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for the current directory."""
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words, HOME=str(tmp_path), ROTA_URL=f"http://127.0.0.1:{closed_port()}")
    assert (code, out) == (2, "")
    assert "is empty; name a file or a directory, or leave it out" in err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_variable_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("config", "show", "--json", HOME=str(tmp_path), ROTA_DATA_DIR="", XDG_DATA_HOME="")
    assert code == 0 and str(tmp_path / ".local" / "share" / "rota") in out


def test_doctor_opens_no_store_that_others_could_have_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rota.db").write_text("no database")
    env = {"ROTA_DATA_DIR": str(data), "HOME": str(tmp_path), "ROTA_URL": f"http://127.0.0.1:{closed_port()}"}
    assert "fail  store" in call("doctor", **env)[1]
    (data / "rota.db").chmod(0o666)
    code, out, _ = call("doctor", **env)
    assert code == 1 and f"chmod go-w {data / 'rota.db'}" in out and "fail  store" not in out


@pytest.mark.parametrize(
    ("device", "namespaces", "said"),
    [
        (None, "1000", "none on this machine"),
        ((0o600, 44), "1000", "open to root alone"),
        ((0o660, 0), "1000", "open to root alone"),
        ((0o660, 44), "1000", "open to a group"),
        ((0o600, 0, 1000), "1000", "open to its owner, account 1000"),
        ((0o666, 0), "1000", "open to every account"),
        ((0o666, 0), None, "open to every account"),
        ((0o666, 0), "0", "no account can make mounts"),
        ((0o666, 0), "0 and fusermount3", "open to every account"),
    ],
)
def test_doctor_says_who_can_make_fuse_mounts(
    device: tuple[int, ...] | None, namespaces: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse, allowed, programs = tmp_path / "fuse", tmp_path / "max_user_namespaces", tmp_path / "bin"
    monkeypatch.setattr(checkup, "FUSE", str(fuse))
    monkeypatch.setattr(checkup, "USER_NAMESPACES", str(allowed))
    monkeypatch.setattr(checkup, "PROGRAMS", (str(programs),))
    monkeypatch.setenv("PATH", "")
    programs.mkdir()
    if namespaces is not None:
        number, _, program = namespaces.partition(" and ")
        allowed.write_text(f"{number}\n")
        if program:
            (programs / program).touch(0o755)
    if device is not None:
        fuse.touch()
        fuse.chmod(device[0])
        owned = list(os.stat(fuse))
        owned[stat.ST_GID], owned[stat.ST_UID] = (*device, 0)[1:3]  # which not everybody may choose
        monkeypatch.setattr("rota.cli.checkup.os.stat", lambda path: os.stat_result(owned))
    (found,) = checkup._fuse()
    warned = "open to" in said and "root alone" not in said
    assert (found.level, said in found.text) == (checkup.WARN if warned else checkup.OK, True)
    assert (f"chmod 600 {fuse}" in found.next_step) == warned


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("    0:    11 10/10 5/1000000 245/25000000", []),
        ("    0:    11 10/10 900000/1000000 245/25000000", ["root_maxkeys=2000000"]),
        ("    0:    11 10/10 999999/1000000 25000000/25000000", ["root_maxkeys=2000000", "root_maxbytes=50000000"]),
        ("", []),
        (None, []),
    ],
)
def test_doctor_says_when_roots_quota_of_kernel_keys_is_nearly_full(
    line: str | None, about: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "key-users"
    monkeypatch.setattr(checkup, "KEY_USERS", str(users))
    if line is not None:
        users.write_text(f"{line}\n 1001:   200 200/200 200/200 1901/20000\n")
    found = list(checkup._keys())
    assert [one.level for one in found] == [checkup.WARN] * len(about)
    assert all(text in one.next_step for text, one in zip(about, found, strict=True))
