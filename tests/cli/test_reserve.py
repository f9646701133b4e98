"""`rota reserve`: keeping GPUs, the calendar, giving them up; and a run that names what is kept."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from rota.cli.agenda import picture
from rota.cli.kept import reservation_id
from rota.client.model.reservation import reservation
from rota.client.sync import Client
from tests.cli.lab import Lab
from tests.cli.test_when import BERLIN

HOUR = 3600.0


@pytest.fixture
def office(lab: Lab) -> Iterator[Lab]:
    """A lab in which nothing stays reserved."""
    yield lab
    with lab.client() as client:
        for one in client.reservations():
            client.cancel_reservation(one.id)


def test_the_life_of_one(office: Lab) -> None:
    words = ("reserve", "--gpus", "4", "--from", "tomorrow 9:00", "--for", "4h", "--name", "demo", "--user", "ben")
    assert "nothing was done" in office.out(*words, "--dry-run")
    assert office.out("reserve", "list").startswith("nothing is reserved; try: rota reserve --gpus 1")
    done = office.rota(*words, "--user", "cid")
    made = done.stdout.split()[0].decode()
    assert b" 4 GPUs on node1:0-3, in " in done.stdout
    assert f"use it with: rota submit --reservation {made} -- COMMAND" in done.stderr.decode()
    (shown,) = office.json("reserve", "list")
    assert (shown["id"], shown["name"], shown["users"], shown["gpus"]) == (made, "demo", ["ben", "cid"], 4)
    assert shown["end"] - shown["start"] == 4 * HOUR
    assert datetime.fromtimestamp(shown["start"]).strftime("%H:%M") == "09:00"
    drawn = office.out("reserve", "list").splitlines()
    assert drawn[1].startswith("node1  ········│···44···│")
    assert drawn[-1].split()[:2] == [made, "upcoming"] and drawn[-1].endswith("demo")
    assert office.out("reserve", "cancel", "--dry-run", "demo") == f"{made} could be given up; nothing was done\n"
    assert office.out("reserve", "cancel", made[-8:]) == f"{made} is given up\n"
    again = office.rota("reserve", "cancel", made)
    assert (again.returncode, b"or it is over" in again.stderr) == (75, True)


def test_now_until_and_quiet(office: Lab) -> None:
    first = office.out("reserve", "-G", "1", "--from", "now", "--until", "+90m", "-q").strip()
    second = office.json("reserve", "-G", "2", "-N", "2", "--gpu-type", "h100", "--for", "1h")
    assert (second["state"], second["nodes"]) == ("active", {"node1": [1], "node2": [0]})
    found = {one["id"]: one for one in office.json("reserve", "list")}
    assert abs(found[first]["end"] - found[first]["start"] - 1.5 * HOUR) < 60
    ambiguous = office.rota("reserve", "cancel", first[:4])
    assert ambiguous.returncode == 2 and b"stands for 2 of them" in ambiguous.stderr


def test_a_run_names_what_is_kept(office: Lab) -> None:
    kept = office.out("reserve", "-G", "2", "--from", "+2h", "--for", "1h", "-J", "Training Day", "-q").strip()
    run_id = office.submit("--held", "--reservation", kept, "-G", "2", "--", "true")
    assert office.show(run_id)["reservation"] == kept
    assert office.json("reserve", "list")[0]["runs"] == [run_id]
    batch = office.slurm(
        "sbatch", "--parsable", "--hold", f"--reservation={kept}", "--gpus=1", "--wrap", "true"
    ).strip()
    assert office.show(batch)["reservation"] == kept
    for named in (kept[:10], kept[-8:], "Training Day"):
        run_id = office.submit("--held", "--reservation", named, "-G", "1", "--", "true")
        assert office.show(run_id)["reservation"] == kept
    tried = office.out("submit", "--reservation", kept, "-G", "1", "-t", "3h", "--dry-run", "--", "true")
    assert tried.startswith("would be accepted; nothing was done; note: it may run on after reservation ")
    batch = office.slurm("sbatch", "--parsable", "--hold", "--reservation=Training Day", "--gpus=1", "--wrap", "true")
    assert office.show(batch.strip())["reservation"] == kept
    assert "--reservation: is empty" in office.slurm_all("sbatch", "--reservation=", "--wrap", "true").stderr.decode()
    for words, told in (
        (("--reservation", ""), b"--reservation: is empty; give a reservation's id or name"),
        (("--reservation", "nope"), b"there is none called 'nope'"),
        (("--reservation", kept, "-G", "3"), b"do not fit into reservation"),
    ):
        done = office.rota("submit", *words, "--", "true")
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_anothers_of_the_same_name_is_not_meant(office: Lab) -> None:
    mine = office.out("reserve", "-G", "1", "--from", "+2h", "--for", "1h", "-J", "demo", "-q").strip()
    theirs = {"gpus": 1, "from": time.time() + 7200, "for_seconds": 3600, "name": "demo", "user": "ben"}
    shared = {**theirs, "user": "cid", "users": [office.json("whoami")["name"]]}
    taken = {**theirs, "name": mine[:10]}
    for one in (theirs, shared, taken):
        assert office.server.post("/reservations", one).ok()["user"] != office.json("whoami")["name"]
    run_id = office.submit("--held", "--reservation", "demo", "-G", "1", "--", "true")
    assert office.show(run_id)["reservation"] == mine, "one's own goes before one that one may use"


def test_of_several_names_the_one_that_the_caller_may_use_is_meant(tmp_path: Path) -> None:
    """Ann may use cid's `demo`; ben has a `demo` too, and calls another one by the beginning of the id of hers."""
    with Lab(tmp_path) as lab:
        tokens = {name: lab.out("token", "create", "--user", name, "-q").strip() for name in ("ann", "ben", "cid")}
        words = ("reserve", "-G", "1", "--from", "+2h", "--for", "1h", "-q", "-J")

        def out(who: str, *words: str) -> str:
            return lab.out(*words, env={**lab.env, "ROTA_URL": lab.server.url, "ROTA_TOKEN": tokens[who]}).strip()

        own = out("ann", *words, "course")
        usable = out("cid", *words, "demo", "--user", "ann")
        foreign = out("ben", *words, "demo"), out("ben", *words, own[:10])
        with Client(lab.server.url, token=tokens["ann"]) as client:
            for text, meant in (("demo", usable), ("course", own), (own[:10], own)):
                assert reservation_id(client, text) == meant
        ambiguous = lab.rota("reserve", "cancel", "demo", "--dry-run")
        assert ambiguous.returncode == 2 and foreign[0].encode() in ambiguous.stderr, "an admin may use both"
        for one in (own, usable, *foreign):
            lab.out("reserve", "cancel", one)


def test_what_is_reserved_now_is_not_shown_as_free(office: Lab) -> None:
    kept = office.out("reserve", "-G", "2", "--for", "1h", "-J", "demo", "--user", "ben", "-q").strip()
    office.out("reserve", "-G", "2", "--from", "+2h", "--for", "1h", "-q")
    me = office.json("whoami")["name"]
    shown = office.out("gpus")
    assert shown.splitlines()[1].split() == ["node1", f"R:{me}"[:8], f"R:{me}"[:8], "·", "·"], shown
    assert "0 of 8 GPUs held, 6 free, 2 reserved" in shown
    assert f"reserved: demo ({kept}) keeps 2 GPUs for {me}, ben until " in shown
    office.wait_for(office.submit("--reservation", "demo", "-G", "1", "--", "sleep", "1000"), "running")
    shown = office.out("gpus")
    assert "1 of 8 GPUs held, 6 free, 1 reserved" in shown and ", 1 of them held" in shown
    assert office.out("nodes").splitlines()[1].split()[2] == "2" and "1 reserved" in office.out("nodes")
    gpus = office.json("gpus")
    assert [gpu["reserved"] and gpu["reserved"]["reservation_id"] for gpu in gpus] == [kept] * 2 + [None] * 6
    assert {gpu["status"] for gpu in gpus} == {"available", "allocated"}, "the words are as they were"


def test_busy_gpus_are_told_of(office: Lab) -> None:
    for _ in range(2):
        office.wait_for(office.submit("-G", "4", "-t", "5h", "--", "sleep", "1000"), "running")
    done = office.rota("reserve", "-G", "2", "--from", "+1h", "--for", "1h")
    assert b"none of these GPUs is expected to be free before the reservation ends: all are" in done.stderr


def test_a_protected_run_is_told_of_by_a_dry_run_without_an_id_that_names_nothing(office: Lab) -> None:
    run_id = office.submit("--preemptible", "-G", "4", "--", "sleep", "1000")
    office.wait_for(run_id, "running")
    done = office.rota("reserve", "-G", "8", "--for", "1h", "--dry-run")
    assert b" into the reservation: it had only just started when that was made" in done.stderr, done.stderr
    assert f"note: {run_id} of ".encode() in done.stderr and b"overdue" not in done.stderr, "it is there by right"
    waiting = office.submit("-G", "8", "-N", "2", "-t", "1h", "--", "true")
    told = office.out("explain", waiting)
    assert re.search(r"\(expected to last until (\d{4}-\d\d-\d\d )?\d\d:\d\d", told), told
    office.out("cancel", waiting)


def test_some_that_never_come_free_are_counted(office: Lab) -> None:
    for gpus in ("4", "3"):
        office.wait_for(office.submit("-G", gpus, "-t", "5h", "--", "sleep", "1000"), "running")
    never = b"note: 7 of the 8 are not expected to be free before the reservation ends; some are expected"
    for length, told in (("1h", never), ("9h", b"note: some are expected to be busy until")):
        done = office.rota("reserve", "-G", "8", "--from", "+1h", "--for", length, "--dry-run")
        assert told in done.stderr and b"the reservation gets them as they come free" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        ((), b"say how many and for how long: rota reserve --gpus 8", 2),
        (("--gpus", "2"), b"--for (or --until) missing; say how many and for how long", 2),
        (("--for", "1h"), b"--gpus missing", 2),
        (("--gpus", "2", "--for", "1h", "--until", "+2h"), b"--for or --until, not both", 2),
        (("--gpus", "2", "--for", "40d"), b"40 d is too long; a reservation lasts from 1 min to 30 d", 2),
        (("--gpus", "2", "--for", "30s"), b"30 s is too short; a reservation lasts from 1 min to 30 d", 2),
        (("--gpus", "2", "--from", "+100d", "--for", "1h"), b"use a time within the next 90 days, up to ", 2),
        (("--gpus", "2", "--from", "25:00", "--for", "1h"), b"25:00 is no time of the day; write 0:00 to 23:59", 2),
        (("--gpus", "3", "-N", "2", "--for", "1h"), b"use a multiple of 2", 2),
        (("--gpus", "0", "--for", "1h"), b"--gpus", 2),
        (("--gpus", "2", "--for", "soon"), b"is not a time", 2),
        (("--gpus", "2", "--from", "soon", "--for", "1h"), b"'soon' is not a time; write now, 9:00", 2),
        (("--gpus", "2", "--from", "2020-01-01 09:00", "--for", "1h"), b"from: is in the past", 2),
        (("--gpus", "2", "--from", "+2h", "--until", "+1h"), b"until: it would end before it begins", 2),
        (("--gpus", "9", "--for", "1h"), b"gpus: this cluster can never give 9 GPUs", 2),
        (("--gpus", "2", "--for", "1h", "--name", "a\nb"), b"name", 2),
        (("cancel", "nope"), b"no reservation 'nope', or it is over", 75),
        (("cancel", ""), b"RESERVATION_ID: is empty", 2),
        (("frob",), b"No such command", 2),
    ],
)
def test_nonsense_is_one_line_and_a_code(lab: Lab, words: tuple[str, ...], told: bytes, code: int) -> None:
    done = lab.rota("reserve", *words)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert lab.json("reserve", "list") == []


class TestPicture:
    @pytest.fixture(autouse=True)
    def _berlin(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("TZ", BERLIN)
        time.tzset()
        yield
        monkeypatch.undo()
        time.tzset()

    @staticmethod
    def drawn(*kept: tuple[str, str, dict[str, list[int]]], now: str = "2026-10-24 15:00", days: int = 3) -> list[str]:
        found = [
            reservation({"id": "r", "nodes": nodes, "start": _at(begin), "end": _at(end)}) for begin, end, nodes in kept
        ]
        return picture(found, _at(now), days).splitlines()

    def test_hours_are_by_the_clock_also_when_the_clocks_change(self) -> None:
        lines = self.drawn(
            ("2026-10-24 09:00", "2026-10-24 12:00", {"n1": [0, 1]}),
            ("2026-10-25 09:00", "2026-10-25 15:00", {"n1": [0], "node2": [*range(12)]}),
            ("2026-10-25 12:00", "2026-10-26 00:00", {"n1": [1, 2]}),
            ("2026-10-30 09:00", "2026-10-30 12:00", {"n3": [0]}),
        )
        assert lines == [
            "       Sat 24  │Sun 25  │Mon 26",
            "n1     ···2····│···13222│········",
            "node2  ········│···++···│········",
            "a column is 3 hours; a digit says how many GPUs are reserved then, · none, + ten or more",
        ]

    def test_two_after_one_another_in_a_column_are_not_added_up(self) -> None:
        lines = self.drawn(
            ("2026-10-24 15:00", "2026-10-24 16:00", {"a": [0, 1]}),
            ("2026-10-24 16:00", "2026-10-24 17:00", {"a": [1, 2, 3]}),
            days=1,
        )
        assert lines[1] == "a  ·····3··"

    def test_nothing_in_those_days_is_no_picture(self) -> None:
        assert self.drawn(("2026-11-24 15:00", "2026-11-24 16:00", {"a": [0]})) == []
        many = {f"n{number:03}": [0] for number in range(50)}
        assert self.drawn(("2026-10-24 15:00", "2026-10-24 16:00", many), days=1)[-2] == "and 10 more nodes"


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
