"""`rota history` and `rota --version`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rota import __version__
from rota.cli.main import main
from tests.app.house import ANN, BOB


def test_version_and_help(shell):
    assert shell.rota("--version").stdout.decode() == f"rota, version {__version__}\n"
    listed = shell.rota("--help").stdout.decode()
    assert all(name in listed for name in ("local", "up", "history"))
    for name in ("local", "up", "history"):
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("args", [["nonsense"], ["--nonsense"], ["history", "extra"], ["up", "--nonsense"]])
def test_what_is_no_command(shell, args):
    assert CliRunner().invoke(main, args).exit_code == 2


def test_history_before_anything_ran(shell):
    done = shell.rota("history")
    assert done.returncode == 75
    assert b"nothing has run" in done.stderr
    assert not shell.house.data.exists(), "looking makes nothing"


def test_history_shows_what_ran_newest_first_and_who_used_what(shell):
    house = shell.house.open()
    first = house.submit("true", 2, name="first")
    house.wait(first)
    second = house.submit("exit 3", 1, BOB, name="second")
    house.wait(second)
    third = house.submit("true", held=True, name="third")
    lines = shell.rota("history").stdout.decode().splitlines()  # beside a running server
    assert [line.split()[0] for line in lines[1:4]] == [third, second, first]
    assert "failed" in lines[2]
    assert "(exit code 3)" in lines[2]
    done = json.loads(shell.rota("history", "--json").stdout)
    assert [row["id"] for row in done["runs"]] == [third, second, first]
    row = done["runs"][1]
    told = ("id", "name", "user", "state", "gpus", "attempts", "exit_code", "signal", "why")
    assert [row[key] for key in told] == [second, "second", "bob", "failed", 1, 1, 3, None, "exit code 3"]
    assert row["command"][-1] == "exit 3"
    assert 0 <= row["ran_s"] <= row["ended_at"] - row["submitted_at"]
    assert done["runs"][0]["ran_s"] is None and done["runs"][0]["ended_at"] is None
    usage = {row["user"]: row for row in done["usage"]}
    assert usage["ann"]["attempts"] == usage["bob"]["attempts"] == 1
    assert usage["ann"]["gpu_hours"] == pytest.approx(house.last_attempt(first).gpu_s / 3600)
    assert len(json.loads(shell.rota("history", "--json", "--limit", "2").stdout)["runs"]) == 2
    assert house.rota.run(first).user == ANN.name


@pytest.mark.parametrize(
    "args", ["--limit 0", "--limit 1001", "--limit x", "--days 0", "--days -1", "--days nan", "--days inf"]
)
def test_history_with_bad_options(args):
    assert CliRunner().invoke(main, ["history", *args.split()]).exit_code == 2


def test_history_of_an_odd_period(shell):
    house = shell.house.open()
    house.wait(house.submit("true"))
    for days in ("1e308", "inf", "nan"):
        done = CliRunner().invoke(main, ["history", "--data-dir", str(house.data), "--days", days])
        assert done.exit_code in (0, 2), (days, done.exception)


def test_history_of_a_file_that_is_no_database(shell, tmp_path):
    (tmp_path / "rota.db").write_bytes(b"x" * 4096)
    done = shell.rota("history", "--data-dir", str(tmp_path))
    assert done.returncode == 75
    assert done.stderr.startswith(b"rota: ")
