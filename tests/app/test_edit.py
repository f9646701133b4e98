"""Edit and archive: while it waits, while it runs, and long after its end."""

from __future__ import annotations

import hashlib

import pytest

from rota.app.authz import Principal, Role
from rota.app.commands import Archive, Cancel, Edit, Release, Report, Rerun
from rota.app.errors import Conflict, Forbidden, Invalid, NotFound
from rota.app.ports import RunFilter
from rota.core import events as e
from rota.core.run import Replaced, RunState
from tests.app.house import ANN, BOB


def line(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


def test_a_waiting_run_is_changed_and_then_runs_as_changed(house):
    run_id = house.submit("echo old", held=True, labels={"a": "1", "b": "2"})
    edited = house.do(Edit(run_id, name="new", argv=line("echo new"), labels={"b": "", "c": "3"}, group="g"), ANN)
    assert (edited.spec.name, edited.spec.labels, edited.spec.group) == ("new", {"a": "1", "c": "3"}, "g")
    house.do(Release(run_id), ANN)
    assert house.wait(run_id).state is RunState.SUCCEEDED
    assert house.output(run_id) == "new\n"
    house.reopen()
    assert house.run(run_id).spec == edited.spec


def test_no_command_gets_a_priority_that_its_author_may_not_give(house):
    """An agent edits its person's runs, but may not submit with their highest priority."""
    agent = Principal("bot", Role.AGENT, acts_for="ann")
    urgent, usual = (house.submit("true", held=True, priority=priority) for priority in (4, 2))
    with pytest.raises(Forbidden, match="priority 4"):
        house.do(Edit(urgent, argv=line("echo mine")), agent)
    assert house.do(Edit(urgent, name="only a name"), agent).spec.name == "only a name"
    assert house.do(Edit(usual, argv=line("echo mine")), agent).spec.argv == line("echo mine")
    assert house.do(Edit(urgent, argv=line("echo hers")), ANN).spec.argv == line("echo hers")


def test_a_running_run_keeps_its_command(house):
    run_id = house.running()
    was = house.run(run_id).spec
    for change in ({"argv": ("true",)}, {"workdir": "/tmp"}):
        with pytest.raises(Conflict, match="running") as refusal:
            house.do(Edit(run_id, name="no", **change), ANN)
        assert refusal.value.field == ("command" if "argv" in change else "workdir")
    assert house.run(run_id).spec == was, "not even the name"
    assert house.do(Edit(run_id, argv=was.argv, workdir=was.workdir), ANN).spec == was, "nothing is changed"
    assert house.do(Edit(run_id, name="yes"), ANN).spec.name == "yes"
    assert len(house.events(e.RunEdited)) == 1


def test_a_run_that_ended_is_renamed_in_its_row(house):
    run_id = house.submit("true")
    ended = house.wait(run_id)
    assert house.do(Edit(run_id, name="better"), ANN).spec.name == "better"
    assert house.do(Edit(run_id, labels={"k": "v"}), ANN).spec.name == "better", "the second sees the first"
    house.do(Archive(run_id), ANN)
    found = house.run(run_id)
    assert (found.spec.name, found.spec.labels, found.state) == ("better", {"k": "v"}, RunState.SUCCEEDED)
    assert found.past == ended.past
    assert found.archived_at is not None
    with pytest.raises(Conflict, match="already ended"):
        house.do(Cancel(run_id), ANN)
    house.reopen()
    assert house.run(run_id) == found


def test_edits_of_an_ended_run_that_come_together_see_each_other(house):
    run_id = house.submit("true")
    house.wait(run_id)
    with house.occupied():
        sent = [house.rota.send(ANN, Edit(run_id, labels={f"l{n}": str(n)})) for n in range(5)]
        sent.append(house.rota.send(ANN, Archive(run_id)))
    answers = [future.result(60) for future in sent]
    assert answers[-1].spec.labels == {f"l{n}": str(n) for n in range(5)}
    assert house.run(run_id) == answers[-1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": " \t"}, "name"),
        ({"name": "n" * 501}, "name"),
        ({"argv": ()}, "command"),
        ({"argv": ("",)}, "command"),
        ({"argv": ("/bin/sh", "-c", "  ")}, "command"),
        ({"argv": ("a\0b",)}, "command"),
        ({"argv": ["true"]}, "argv"),
        ({"workdir": ""}, "workdir"),
        ({"workdir": "relative"}, "workdir"),
        ({"labels": {"a": "\0"}}, "labels"),
        ({"labels": {str(n): "x" for n in range(65)}}, "labels"),
        ({"labels": {"a": 1}}, "labels"),
        ({"group": "g" * 501}, "group"),
        ({"name": 7}, "name"),
    ],
)
def test_nonsense_is_refused_with_the_field(house, change, field):
    run_id = house.submit("true", held=True)
    before = house.run(run_id)
    with pytest.raises(Invalid) as refusal:
        house.do(Edit(run_id, **change), ANN)
    assert refusal.value.field == field
    assert house.run(run_id) == before


def test_a_run_the_cluster_outgrew_can_still_be_renamed(build):
    house = build(2, 4).open()
    run_id = house.submit("true", 8, held=True)
    house.close()
    house.settings = type(house.settings)(house.settings.data_dir, simulated=(1, 4))
    house.open()
    assert house.do(Edit(run_id, name="too wide now"), ANN).spec.name == "too wide now"


def test_only_the_owner_and_an_admin(house):
    run_id = house.submit("true", held=True)
    for command in (Edit(run_id, name="x"), Archive(run_id)):
        with pytest.raises(Forbidden):
            house.do(command, BOB)
        house.do(command)
    for command in (Edit("0" * 12, name="x"), Archive("0" * 12)):
        with pytest.raises(NotFound):
            house.do(command, ANN)


def test_archiving_is_a_matter_of_sight_only(house):
    gone, there = house.submit("true", held=True), house.submit("true", held=True)
    assert house.do(Archive(gone), ANN).archived_at is not None
    assert house.do(Archive(gone), ANN).archived_at is not None, "twice is once"
    assert len(house.events(e.RunArchived)) == 1
    assert [run.id for run in house.rota.runs(RunFilter(archived=False))] == [there]
    assert [run.id for run in house.rota.runs(RunFilter(archived=True))] == [gone]
    assert len(house.rota.runs(RunFilter())) == 2
    assert house.do(Archive(gone, archived=False), ANN).archived_at is None


def test_a_rerun_takes_a_new_command_place_and_labels(house):
    run_id = house.submit("true", held=True, labels={"chat": "c", "old": "x"}, group="g")
    command = Rerun(run_id, argv=line("pwd"), workdir="/", labels={"origin_alert_id": "a1", "old": ""})
    again = house.do(command, ANN)
    assert again.spec.name == "t (Rerun)"
    assert again.spec.labels == {"chat": "c", "parent_run_id": run_id, "origin_alert_id": "a1"}
    assert (again.spec.group, again.spec.workdir) == ("g", "/")
    house.wait(again.id)
    assert house.output(again.id) == "/\n"
    with pytest.raises(Invalid) as refusal:
        house.do(Rerun(run_id, workdir="relative"), ANN)
    assert refusal.value.field == "workdir"


def test_what_ran_stays_with_the_run_when_its_command_is_edited_afterwards(house):
    run_id = house.submit("echo first")
    ran = house.wait(run_id).spec
    assert house.do(Edit(run_id, name="better", labels={"k": "v"}, group="g"), ANN).spec.replaced is None
    edited = house.do(Edit(run_id, argv=line("echo second")), ANN)
    assert (edited.spec.argv, edited.spec.replaced) == (line("echo second"), Replaced("echo first", ran.workdir))
    again = house.do(Edit(run_id, argv=("echo", "a  b"), workdir="/"), ANN)
    assert again.spec.replaced == edited.spec.replaced, "one entry, of what ran first"
    house.reopen()
    assert house.run(run_id).spec == again.spec
    rerun = house.do(Rerun(run_id, held=True), ANN)
    assert (rerun.spec.argv, rerun.spec.replaced) == (("echo", "a  b"), None), "a new run has run nothing"
    assert house.do(Edit(rerun.id, argv=line("echo third")), ANN).spec.replaced is None
    assert house.do(Edit(rerun.id, workdir="/"), ANN).spec.replaced is None


def test_of_a_long_command_that_ran_its_beginning_and_its_hash_stay(house):
    long = "true #" + "x" * 100_000
    moved, told = house.submit(long), house.submit("echo there", held=True)
    house.wait(moved)
    kept = house.do(Edit(moved, argv=line("true")), ANN).spec.replaced
    assert kept is not None
    assert (kept.command, kept.sha256) == (long[:2000], hashlib.sha256(long.encode()).hexdigest())
    house.do(Report(told, RunState.SUCCEEDED), ANN)
    there = house.do(Edit(told, workdir="/"), ANN).spec.replaced
    assert there is not None and there.command == "echo there", "also of what ran elsewhere"
