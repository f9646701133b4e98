"""Leases: GPUs for processes that are there already. Real processes, a real server, and a server killed with -9."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import pwd
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest.mock import patch

import pytest
from starlette.requests import Request

import rota.main
from rota.adapters import accounts
from rota.adapters.backends import procs
from rota.adapters.clock import ManualClock
from rota.adapters.processes import LinuxProcesses
from rota.api.doors import leases as api
from rota.app import budget
from rota.app import leases as module
from rota.app import loop as loop_module
from rota.app.accounts import Accounts
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, EndLease, Hold, Pause, Rerun, Resume, Submit, Withdraw
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound, Unavailable
from rota.app.later import Later
from rota.app.leases import Asked, Caller, Leases, NotAlive
from rota.app.ports import RunFilter
from rota.app.service import Service
from rota.core.check import check
from rota.core.ids import attempt_id
from rota.core.run import ENDED, Cause, Run, RunState
from tests.app.house import ANN, BOB, ROOT, SOURCES, House, alive, until, with_policy

PATIENCE_S = 60.0
ME = pwd.getpwuid(os.getuid()).pw_name
NOBODY = pwd.getpwnam("nobody").pw_uid
MYSELF = Principal(ME, Role.USER)
S = RunState


class People:
    """Processes of people, each ended with the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def __call__(self, *argv: str, **more: Any) -> subprocess.Popen[bytes]:
        self.all.append(subprocess.Popen(argv or ("sleep", "100000"), **more))
        return self.all[-1]


@pytest.fixture
def person(build: object) -> Iterator[People]:
    made = People()
    yield made
    for process in made.all:
        process.kill()
        process.wait()


def leases(house: House) -> Leases:
    return house.parts.leases


def ask(house: House, process: subprocess.Popen[bytes], gpus: int = 1, key: str = "") -> Asked:
    return leases(house).ask(Caller(ANN, 0), process.pid, gpus, key)


def given(house: House, process: subprocess.Popen[bytes], gpus: int = 1, key: str = "") -> str:
    return ask(house, process, gpus, key).granted.result(PATIENCE_S).run_id


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def taken(house: House, who: Principal, pid: int, gpus: int = 0) -> str:
    return leases(house).ask(Caller(who, 0), pid, gpus).granted.result(PATIENCE_S).run_id


def waits(house: House) -> list[Run]:
    return [run for run in house.rota.view().runs.values() if run.state is S.QUEUED]


# -- asking and holding ------------------------------------------------------------------------------------------------
def test_a_lease_lasts_as_long_as_its_process(house, person):
    process = person("sleep", "100000")
    until(
        lambda: house.parts.processes.look(process.pid, "test").command == ("sleep", "100000"),
        "it has become what it is",
    )
    grant = ask(house, process, 3).granted.result(PATIENCE_S)
    assert grant.gpus == (0, 1, 2)
    run = house.run(house.in_state(grant.run_id, S.RUNNING))
    assert (run.user, run.spec.name, run.spec.argv, run.attempt.pid) == (
        "ann",
        "sleep",
        ("sleep", "100000"),
        process.pid,
    )
    assert house.free() == 5
    end(process)
    ended = house.wait(grant.run_id)
    assert (ended.state, ended.past[-1].exit.cause, ended.attempts_made) == (S.SUCCEEDED, Cause.RELEASED, 1)
    assert ended.past[-1].gpu_s > 0
    assert house.free() == 8
    assert house.output(grant.run_id) == ""


def test_numbers_count_flat_over_all_nodes(house, person):
    first = ask(house, person(), 3).granted.result(PATIENCE_S)
    second = ask(house, person(), 4).granted.result(PATIENCE_S)
    last = ask(house, person(), 1).granted.result(PATIENCE_S)
    assert (first.gpus, second.gpus, last.gpus) == ((0, 1, 2), (4, 5, 6, 7), (3,))


def test_a_big_one_may_span_the_nodes(house, person):
    assert ask(house, person(), 8).granted.result(PATIENCE_S).gpus == tuple(range(8))


def test_no_gpu_at_all_may_be_asked_for(house, person):
    blocker = given(house, person(), 8)
    process = person()
    grant = ask(house, process, 0).granted.result(PATIENCE_S)
    assert grant.gpus == ()
    end(process)
    assert house.wait(grant.run_id).state is S.SUCCEEDED
    assert house.run(blocker).state in (S.STARTING, S.RUNNING)


def test_without_a_caller_the_account_of_the_process_asks(house, person):
    grant = leases(house).ask(Caller(None, 0), person().pid, 1).granted.result(PATIENCE_S)
    assert house.run(grant.run_id).user == ME
    another = leases(house).ask(Caller(None, 0), person(user=NOBODY).pid, 1).granted.result(PATIENCE_S)
    assert house.run(another.run_id).user == "nobody"


def test_an_id_without_an_account_gets_a_lease_by_a_token_only(house, person):
    """Else an account that may have processes of many ids would be as many people."""
    theirs = person(user=54321).pid
    for uid in (0, 54321):
        for act in (leases(house).ask, leases(house).try_out):
            with pytest.raises(Forbidden, match=r"user id 54321, which no account .* show a token"):
                act(Caller(None, uid), theirs, 1)
    assert house.free() == 8, "nothing was taken"
    grant = leases(house).ask(Caller(ANN, 54321, own_token=True), theirs, 1).granted.result(PATIENCE_S)
    assert house.run(grant.run_id).user == "ann"


def test_leases_of_subordinate_ids_are_their_accounts(build, person, tmp_path, monkeypatch):
    """Its share pays for them, its bounds count them, and they end with a cancel."""
    (tmp_path / "subuid").write_text("nobody:900000:65536\n")
    monkeypatch.setattr(accounts, "SUBUID", str(tmp_path / "subuid"))
    house = build().open()
    for uid in (900_000, 900_001):
        process = person(user=uid)
        grant = leases(house).ask(Caller(None, uid), process.pid, 1).granted.result(PATIENCE_S)
        run = house.run(grant.run_id)
        assert (run.user, run.spec.holder.asked_by) == ("nobody", "nobody")
        with pytest.raises(Forbidden, match="another account's"):
            leases(house).ask(Caller(None, NOBODY + 1), process.pid, 1)
        house.do(Cancel(grant.run_id), Principal("nobody", Role.USER))
        assert house.wait(grant.run_id).state is S.CANCELLED
        assert process.wait(PATIENCE_S) == -signal.SIGTERM


class TestWhose:
    """A lease is for one's own process: the connection's account must be the process's, or root's."""

    def test_the_account_of_the_connection_decides(self, house, person):
        theirs = person(user=NOBODY).pid
        for uid in (0, NOBODY):
            grant = leases(house).ask(Caller(None, uid), theirs, 1).granted.result(PATIENCE_S)
            assert house.run(grant.run_id).user == "nobody"
            assert house.run(grant.run_id).spec.holder.asked_by == ("root" if uid == 0 else "nobody")
        for caller in (Caller(None, 54322), Caller(ANN, 54322), Caller(ANN, 54322, own_token=True)):
            for act in (leases(house).ask, leases(house).try_out):
                with pytest.raises(Forbidden, match="another account's; ask from the account it belongs to"):
                    act(caller, theirs, 1)
        assert house.free() == 6, "nothing was taken"

    def test_where_the_kernel_cannot_tell_it_is_refused(self, house, person):
        """Not guessed: a proxy's connection, or one from another network namespace, may be anybody's."""
        for who in (None, ANN, ROOT):
            with pytest.raises(Forbidden, match=r"cannot tell which account .* show a token of the account"):
                leases(house).ask(Caller(who, None), person().pid, 1)

    def test_a_token_of_the_process_s_own_account_will_do(self, house, person):
        """Through a proxy the connection is the proxy's, of the account 54322 here."""
        own, theirs = person().pid, person(user=54321).pid
        for uid in (None, 54322):
            assert leases(house).ask(Caller(MYSELF, uid, own_token=True), own, 0).granted.result(PATIENCE_S)
            for caller in (
                Caller(MYSELF, uid),  # a name without a token of one's own behind it: the shared one's, say
                Caller(Principal("bot", Role.AGENT, acts_for=ME), uid, own_token=True),
                Caller(Principal(ME, Role.VIEWER), uid, own_token=True),
            ):
                with pytest.raises(Forbidden):
                    leases(house).ask(caller, own, 0)
            with pytest.raises(Forbidden):
                leases(house).ask(Caller(MYSELF, uid, own_token=True), theirs, 0)

    def test_what_never_ends_is_no_holder(self, house):
        with pytest.raises(Invalid, match="pid: 1 is the first process of this machine, which never ends"):
            leases(house).ask(Caller(None, 0), 1, 1)
        seen = dataclasses.replace(house.parts.processes.look(os.getpid(), "test"), kernel=True)
        with (
            patch.object(LinuxProcesses, "look", lambda self, pid, asker: seen),
            pytest.raises(Invalid, match="is a thread of the kernel, which never ends"),
        ):
            leases(house).ask(Caller(None, 0), os.getpid(), 1)

    def test_one_account_has_a_bound_of_its_own(self, house, person):
        """Also on leases without GPUs, which never wait; what is over counts no more, and a restart forgets nothing."""
        mine, theirs = person().pid, person(user=NOBODY).pid

        def refused() -> None:
            with pytest.raises(Full, match="ann has 3 leases"):
                leases(house).ask(Caller(ANN, 0), mine, 0)

        def at_last(gpus: int) -> Asked:
            """Once the end of an earlier one is known to all."""
            found: list[Asked] = []

            def room() -> bool:
                with contextlib.suppress(Full):
                    found.append(leases(house).ask(Caller(ANN, 0), mine, gpus))
                return bool(found)

            until(room, "there is room for one more")
            return found[0]

        with patch.object(module, "MAX_OF_ONE", 3):
            held = [taken(house, ANN, mine) for _ in range(3)]
            refused()
            house.reopen()
            refused()
            assert leases(house).ask(Caller(None, 0), theirs, 8).granted.result(PATIENCE_S), "others go on"
            leases(house).release(ANN, held[0]).result(PATIENCE_S)
            waiting = at_last(8)
            refused()
            waiting.leave()
            assert at_last(0).granted.result(PATIENCE_S)


def test_what_cannot_be_is_refused_in_plain_words(house, person):
    process = person()
    with pytest.raises(Invalid) as over:
        ask(house, process, 9)
    assert over.value.message == "requested 9 GPU(s) but only 8 available on this machine"
    with pytest.raises(Invalid, match="negative"):
        ask(house, process, -1)
    for wrong in (True, 1.5, "2"):
        with pytest.raises(Invalid, match="whole number"):
            ask(house, process, wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="key"):
        ask(house, process, 1, "x" * 201)
    with pytest.raises(Forbidden):
        leases(house).ask(Caller(Principal("eve", Role.VIEWER), 0), process.pid, 1).granted.result(PATIENCE_S)
    end(process)
    with pytest.raises(NotAlive, match="pid not alive"):
        ask(house, process)
    for pid in (0, -5, 1 << 40):
        with pytest.raises(NotAlive):
            leases(house).ask(Caller(ANN, 0), pid, 1)
    assert house.rota.view().runs == {}


def test_from_asyncio_too(house, person):
    async def main() -> None:
        grant = await asyncio.wrap_future(ask(house, person(), 8).granted)
        assert len(grant.gpus) == 8
        waiting = asyncio.wrap_future(ask(house, person(), 1).granted)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 0.05)  # the client went away: its task was cancelled

    asyncio.run(main())
    until(lambda: not waits(house), "whoever cancels its future has left")


# -- waiting -----------------------------------------------------------------------------------------------------------
def test_the_next_gets_it_when_a_holder_dies(house, person):
    holder = person()
    first = given(house, holder, 8)
    asked = ask(house, person(), 8)
    assert not asked.granted.done()
    end(holder)
    assert asked.granted.result(PATIENCE_S).gpus == tuple(range(8))
    assert house.wait(first).state is S.SUCCEEDED


def test_a_big_one_is_not_starved_by_small_ones(house, person):
    small = [person() for _ in range(8)]
    for process in small:
        given(house, process)
    big = ask(house, person(), 8)
    later = [ask(house, person()) for _ in range(3)]
    for process in small:
        assert not big.granted.done()
        end(process)
    assert len(big.granted.result(PATIENCE_S).gpus) == 8
    assert not any(asked.granted.done() for asked in later)


def test_who_leaves_loses_its_place_and_who_dies_too(house, person):
    given(house, person(), 8)
    leaver, dying, stays = ask(house, person()), person(), ask(house, person())
    dead = ask(house, dying)
    until(lambda: len(waits(house)) == 3, "three wait")
    leaver.leave()
    leaver.leave()
    end(dying)
    with pytest.raises(NotAlive):
        dead.granted.result(PATIENCE_S)
    until(lambda: len(waits(house)) == 1, "one waits")
    assert not stays.granted.done()
    whys = sorted(run.why for run in house.store.runs(RunFilter(limit=1000)) if run.state is S.CANCELLED)
    assert whys == ["its client left", "its process ended"]


def test_leaving_after_it_was_given_changes_nothing(house, person):
    asked = ask(house, person(), 2)
    run_id = house.in_state(asked.granted.result(PATIENCE_S).run_id, S.RUNNING)
    asked.leave()
    house.wait(house.submit("true"))
    assert house.run(run_id).state is S.RUNNING


class Unwelcome:
    """A request to the lease API whose token was revoked."""

    scope: ClassVar[dict[str, Any]] = {"rota.holds": lambda: False}

    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(PATIENCE_S)
        return {"type": "http.disconnect"}


def test_a_grant_that_crosses_the_revocation_of_its_token_goes_back(house, person):
    """It is given on the loop's thread, and the event loop hears of it a moment later."""
    asked = ask(house, person(), 2)
    run_id = asked.granted.result(PATIENCE_S).run_id
    answer = asyncio.run(api._granted(asked, cast(Request, Unwelcome())))
    assert answer.status_code == 401
    assert house.wait(run_id).state in ENDED


def test_who_is_not_welcome_any_more_loses_its_place(house, person):
    given(house, person(), 8)
    asked = ask(house, person())
    until(lambda: len(waits(house)) == 1, "it waits")
    assert asyncio.run(api._granted(asked, cast(Request, Unwelcome()))).status_code == 401
    until(lambda: not waits(house), "it waits no more")


def test_who_leaves_before_it_was_even_stored_leaves_nothing(house, person):
    given(house, person(), 8)
    dying = person()
    with house.occupied():
        asked, dead = ask(house, person()), ask(house, dying)
        asked.leave()
        end(dying)
        with pytest.raises(NotAlive):
            dead.granted.result(PATIENCE_S)
    until(lambda: len(house.store.runs(RunFilter(limit=10))) == 3, "both came in")
    until(lambda: not waits(house), "and went")


def test_withdrawing_comes_too_late_once_it_is_given(house, person):
    process = person()
    run_id = given(house, process)
    assert house.do(Withdraw(run_id, "too late"), ROOT).state in (S.STARTING, S.RUNNING)
    house.in_state(run_id, S.RUNNING)
    assert process.poll() is None
    with pytest.raises(Forbidden):
        house.do(Withdraw(run_id, "not mine"), BOB)


def test_who_asks_in_the_last_moment_is_told_that_it_was_the_last(house, person):
    house.do(Pause())
    with house.occupied():
        asked = ask(house, person())
        leases(house).close()
    with pytest.raises(Unavailable):
        asked.granted.result(PATIENCE_S)


def test_a_waiter_that_is_cancelled_is_told(house, person):
    given(house, person(), 8)
    asked = ask(house, person())
    (run,) = until(lambda: waits(house), "it waits")
    house.do(Cancel(run.id, why="make room"), ROOT)
    with pytest.raises(Conflict, match="make room"):
        asked.granted.result(PATIENCE_S)


def test_while_paused_it_waits_and_then_goes_on(house, person):
    house.do(Pause())
    asked = ask(house, person())
    until(lambda: waits(house), "it waits")
    assert not asked.granted.done()
    house.do(Resume())
    assert asked.granted.result(PATIENCE_S).gpus == (0,)


def test_there_is_a_bound_on_those_who_wait(house, person):
    given(house, person(), 8)
    with patch.object(module, "MAX_WAITERS", 3):
        asked = [ask(house, person()) for _ in range(3)]
        with pytest.raises(Full, match="3 requests are waiting already"):
            ask(house, person())
        asked[0].leave()
        until(lambda: leases(house)._waiters == 2, "one has left")
        ask(house, person())


def test_a_full_queue_refuses_through_the_future(house, person):
    given(house, person(), 8)
    with_policy(house, max_queue=1)
    ask(house, person())
    with pytest.raises(Full, match="Queue is full"):
        ask(house, person()).granted.result(PATIENCE_S)


# -- the same key ------------------------------------------------------------------------------------------------------
def test_the_same_key_is_the_same_lease_waiting_or_given(house, person):
    holder, process = person(), person()
    given(house, holder, 8)
    first, again = ask(house, process, 2, "k"), ask(house, process, 2, "k")
    until(lambda: len(waits(house)) == 1, "both wait for one")
    first.leave()
    end(holder)
    grant = again.granted.result(PATIENCE_S)
    assert ask(house, process, 2, "k").granted.result(PATIENCE_S) == grant
    assert not first.granted.done()
    with pytest.raises(Conflict, match="another process's"):
        ask(house, person(), 2, "k")
    with pytest.raises(Conflict, match="another number"):
        ask(house, process, 3, "k")
    other = leases(house).ask(Caller(BOB, 0), process.pid, 2, "k").granted.result(PATIENCE_S)
    assert other.run_id != grant.run_id, "another person's key is another key"


def test_a_client_that_lost_its_connection_keeps_its_place(house, person):
    holder, process = person(), person()
    given(house, holder, 8)
    with with_deadlines(house) as (made, later):
        first = made.ask(Caller(ANN, 0), process.pid, 8, "k")
        behind = made.ask(Caller(ANN, 0), person().pid, 8)
        until(lambda: len(waits(house)) == 2, "two wait")
        first.leave()
        expire = later.acts[-1]
        again = made.ask(Caller(ANN, 0), process.pid, 8, "k")
        expire()  # the time for which it would have been kept is over
        house.settled()
        end(holder)
        assert len(again.granted.result(PATIENCE_S).gpus) == 8
        assert not behind.granted.done()


def test_and_loses_it_when_it_does_not_come_back(house, person):
    given(house, person(), 8)
    asked = ask(house, person(), 8, "k")
    until(lambda: waits(house), "it waits")
    asked.leave()
    until(lambda: not waits(house), "it is withdrawn", module.LINGER_S + PATIENCE_S)


def test_a_key_can_be_used_again_once_its_lease_is_over(house, person):
    process = person()
    first = given(house, process, 1, "k")
    house.do(EndLease(first), ANN)
    house.wait(first)
    second = given(house, process, 1, "k")
    assert second != first


def test_many_clients_with_one_key_at_once_make_one_run(house, person):
    process, barrier = person(), threading.Barrier(8)
    grants: list[object] = []

    def client() -> None:
        barrier.wait()
        grants.append(ask(house, process, 1, "k").granted.result(PATIENCE_S))

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(grants) == 8 and len(set(grants)) == 1
    assert len(house.rota.view().runs) == 1


# -- giving it back, cancelling ----------------------------------------------------------------------------------------
def test_it_can_be_given_back_while_its_process_lives_on(house, person):
    process = person()
    run_id = given(house, process, 4)
    with pytest.raises(Forbidden):
        leases(house).release(BOB, run_id).result(PATIENCE_S)
    leases(house).release(ANN, run_id).result(PATIENCE_S)
    assert house.wait(run_id).state is S.SUCCEEDED
    assert process.poll() is None
    assert house.free() == 8
    with pytest.raises(Conflict, match="already ended"):
        leases(house).release(ANN, run_id).result(PATIENCE_S)
    with pytest.raises(NotFound):
        leases(house).release(ANN, "000000000000").result(PATIENCE_S)


def test_only_a_lease_that_was_given_can_be_given_back(house, person):
    given(house, person(), 8)
    ask(house, person())
    (waiting,) = until(lambda: waits(house), "one waits")
    with pytest.raises(Conflict, match="nothing to give back"):
        house.do(EndLease(waiting.id), ROOT)
    job = house.sleeper(8)
    with pytest.raises(Conflict, match="not a lease"):
        house.do(EndLease(job), ROOT)


def test_a_cancel_ends_the_owners_process_as_it_would_a_job(house, person):
    process = person()
    run_id = taken(house, MYSELF, process.pid)
    house.in_state(run_id, S.RUNNING)
    house.do(Cancel(run_id, why="enough"), MYSELF)
    ended = house.wait(run_id)
    assert (ended.state, ended.why) == (S.CANCELLED, "enough")
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_nobody_ends_a_process_by_leasing_for_it(house, person):
    """Whoever names a process here says nothing about whose it is: its account does."""
    process = person()
    run_id = given(house, process, 0)
    house.in_state(run_id, S.RUNNING)
    for who in (ANN, ROOT):
        with pytest.raises(Conflict, match="not ann's to end: give the lease back"):
            house.do(Cancel(run_id, grace_s=0.0), who)
    house.do(EndLease(run_id), ANN)
    assert house.wait(run_id).state is S.SUCCEEDED
    assert process.poll() is None


def test_nor_a_job_of_somebody_else_that_has_the_same_account(house):
    """On a server that is not root every job has one account, and a person may be called like it."""
    theirs, mine = house.running(who=BOB), house.running(who=MYSELF)
    on_theirs, on_mine = (taken(house, MYSELF, house.run(job).attempt.pid) for job in (theirs, mine))
    with pytest.raises(Conflict, match="to end"):
        house.do(Cancel(on_theirs, grace_s=0.0), MYSELF)
    on_shim = taken(house, MYSELF, house.shim_of(theirs))
    with pytest.raises(Conflict, match="to end"):
        house.do(Cancel(on_shim, grace_s=0.0), MYSELF)
    house.do(Cancel(on_mine, grace_s=0.0), MYSELF)
    house.wait(mine)
    assert house.run(theirs).state is S.RUNNING
    for lease in (on_theirs, on_shim):
        house.do(EndLease(lease), MYSELF)


def _has_mark(house: House, pid: int, mark: str) -> bool:
    return bool(house.parts.processes.attempt_of(pid, "test") == mark)


def test_a_mark_does_not_keep_a_process_from_its_end_where_people_have_accounts(house, person, monkeypatch):
    here = Accounts(root=True, own="other", run_as="another")
    monkeypatch.setattr(type(house.rota), "accounts", property(lambda _: here))
    for mark in (attempt_id("000000000000", 1), house.run(house.running(who=BOB)).attempt.id):
        process = subprocess.Popen(["/bin/sleep", "100000"], env={procs.MARKER: mark})
        try:
            until(partial(_has_mark, house, process.pid, mark), "it has the mark")
            lease = taken(house, MYSELF, process.pid)
            house.in_state(lease, S.RUNNING)
            house.do(Cancel(lease, grace_s=0.0), MYSELF)
            assert house.wait(lease).state is S.CANCELLED
            assert process.wait(PATIENCE_S) < 0
        finally:
            process.kill()
            process.wait()


def test_a_job_that_washed_off_its_mark_is_still_no_part_of_nobodys(house):
    job = house.submit("exec env -i /bin/sleep 100000", who=BOB)
    pid = until(lambda: (run := house.run(job)).attempt and run.attempt.pid, "it has a pid")
    until(lambda: b"ROTA" not in Path(f"/proc/{pid}/environ").read_bytes(), "it is washed")
    assert house.parts.processes.attempt_of(pid, "test") is not None
    lease = taken(house, MYSELF, pid)
    with pytest.raises(Conflict, match="to end"):
        house.do(Cancel(lease), MYSELF)
    house.do(EndLease(lease), MYSELF)


def test_a_process_of_a_run_leases_with_no_more_than_an_agents_rights(house, person, monkeypatch):
    monkeypatch.setattr(budget, "SURE_PLACES", 0)
    inside, outside = house.run(house.running(who=MYSELF)).attempt.pid, person()
    with_policy(house, max_queue=20)
    for _ in range(2):  # a tenth of the queue, up to which an agent submits
        house.submit("true", who=MYSELF, held=True)
    by_account = Caller(None, os.getuid())
    for ask_for in (leases(house).try_out, lambda *asked: leases(house).ask(*asked).granted.result(PATIENCE_S)):
        with pytest.raises(Full, match="the limit is 2 of the 20 places of the queue while an agent submits"):
            ask_for(by_account, inside, 0)
    assert leases(house).ask(by_account, outside.pid, 0).granted.result(PATIENCE_S).gpus == ()


def test_an_account_that_people_share_leases_with_a_token_alone(house, person, monkeypatch):
    inside, outside = house.run(house.running(who=MYSELF)).attempt.pid, person()
    name = house.parts.processes.account(os.getuid()).name
    monkeypatch.setattr(type(house.rota), "accounts", property(lambda _: Accounts(root=True, own="other", run_as=name)))
    by_account = Caller(None, os.getuid())
    for ask_for, pid in product((leases(house).try_out, leases(house).ask), (inside, outside.pid)):
        with pytest.raises(Forbidden, match=f"has the account {name}, which runs of several") as no:
            ask_for(by_account, pid, 0)
        assert no.value.field == "pid"
    assert leases(house).ask(Caller(MYSELF, os.getuid()), inside, 0).granted.result(PATIENCE_S).gpus == ()


def test_giving_back_outweighs_a_cancel_in_the_same_breath(house, person):
    process = person()
    run_id = given(house, process)
    house.in_state(run_id, S.RUNNING)
    with house.occupied():
        futures = [house.rota.send(ANN, EndLease(run_id)), house.rota.send(ANN, Cancel(run_id, grace_s=0.0))]
    wait_for_all(futures, PATIENCE_S)
    assert house.wait(run_id).state is S.SUCCEEDED
    assert process.poll() is None, "it had been given back: the process is nobody's to end"


def test_it_is_neither_run_nor_run_again(house, person):
    process = person()
    run_id = given(house, process)
    os.kill(process.pid, signal.SIGKILL)
    ended = house.wait(run_id)
    assert (ended.attempts_made, ended.retries) == (1, 0)
    with pytest.raises(Conflict, match="is a lease"):
        house.do(Rerun(run_id), ANN)
    assert not (house.data / "attempts" / f"{run_id}-1").exists()


def test_a_held_one_waits_too(house, person):
    given(house, person(), 8)
    asked = ask(house, person())
    (run,) = until(lambda: waits(house), "it waits")
    house.do(Hold(run.id), ROOT)
    asked.leave()
    until(lambda: house.run(run.id).state is S.CANCELLED, "it can leave from there as well")


# -- the server comes and goes -----------------------------------------------------------------------------------------
def test_leases_outlive_the_server(house, person):
    process, dying = person(), person()
    kept, lost = given(house, process, 3), given(house, dying, 2)
    for run_id in (kept, lost):
        house.in_state(run_id, S.RUNNING)
    house.close()
    end(dying)
    house.open()
    assert house.run(kept).state is S.RUNNING
    assert house.wait(lost).state is S.SUCCEEDED
    assert house.free() == 5
    end(process)
    assert house.wait(kept).state is S.SUCCEEDED, "and are watched by the next"


def test_who_waits_when_the_server_stops_is_told_and_comes_back_to_its_place(house, person):
    holder, first, second = person(), person(), person()
    given(house, holder, 8)
    asked = ask(house, first, 8, "a")
    behind = ask(house, second, 8, "b")
    until(lambda: len(waits(house)) == 2, "two wait")
    house.close()
    for each in (asked, behind):
        with pytest.raises(Unavailable):
            each.granted.result(PATIENCE_S)
        each.leave()  # as a door does when its connection breaks
    with pytest.raises(Unavailable):
        ask(house, first, 8, "a")
    house.open()
    behind, asked = ask(house, second, 8, "b"), ask(house, first, 8, "a")
    assert len(waits(house)) == 2
    end(holder)
    assert len(asked.granted.result(PATIENCE_S).gpus) == 8
    assert not behind.granted.done()


class Patient(Later):
    """The time that clients have to come back after a start is over when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        if delay_s != module.REJOIN_S:
            return super().__call__(delay_s, act)
        self.acts.append(act)
        return lambda: self.acts.remove(act)


def open_out_of_time(house: House) -> Callable[[], None]:
    """Open it; the answer ends the time for which it waits for the clients of the last server."""
    made: list[Patient] = []

    def make() -> Patient:
        made.append(Patient())
        return made[-1]

    with patch.object(rota.main, "Later", make):
        house.open()

    def over() -> None:
        assert made[0].acts
        for act in list(made[0].acts):
            act()

    return over


def test_who_does_not_come_back_is_struck_off_and_the_dead_at_once(house, person):
    given(house, person(), 8)
    dying = person()
    ask(house, person(), 8, "slow")
    ask(house, dying, 8, "dead")
    until(lambda: len(waits(house)) == 2, "two wait")
    house.close()
    end(dying)
    out_of_time = open_out_of_time(house)
    until(lambda: len(waits(house)) == 1, "the dead one is gone")
    (left,) = waits(house)
    out_of_time()
    until(lambda: house.run(left.id).state is S.CANCELLED, "the other had its time")
    assert house.run(left.id).why == "its client did not come back"


def test_what_is_given_to_nobody_goes_back(house, person):
    """Its turn comes while its client is away for good: the GPUs must not wait for the process to end."""
    holder, away = person(), person()
    given(house, holder, 8)
    ask(house, away, 8, "k")
    (run,) = until(lambda: waits(house), "one waits")
    house.close()
    out_of_time = open_out_of_time(house)
    end(holder)
    until(lambda: not waits(house), "its turn has come, and nobody is there")
    out_of_time()
    assert house.wait(run.id).state is S.SUCCEEDED
    assert away.poll() is None
    assert house.free() == 8


def test_after_a_reboot_every_lease_is_over_for_good(build, person):
    house, clock = build(), ManualClock(now=time.time(), tick=1e9, boot_id="one")
    house.clock = lambda: clock
    house.open()
    process = person()
    run_id = given(house, process, 2)
    house.in_state(run_id, S.RUNNING)
    house.close()
    record = house.data / "leases" / f"{run_id}-1"
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot_id": "one"}))
    clock.reboot("two", tick=12.0)
    house.open()
    ended = house.run(run_id)
    assert (ended.state, ended.attempts_made, ended.why) == (S.SUCCEEDED, 1, "the machine restarted")
    assert process.poll() is None, "who has the number now is left alone"


def test_a_record_that_was_lost_is_written_again(house, person):
    process = person()
    run_id = given(house, process)
    house.in_state(run_id, S.RUNNING)
    house.close()
    (house.data / "leases" / f"{run_id}-1").unlink()
    house.open()
    assert house.run(run_id).state is S.RUNNING
    end(process)
    assert house.wait(run_id).state is S.SUCCEEDED


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"pid": "x", "brood": 3}', b"\0" * 100])
@pytest.mark.parametrize("ended", [False, True], ids=["lease", "its end"])
def test_a_damaged_record_neither_ends_a_lease_nor_keeps_the_server_from_starting(house, person, content, ended):
    process = person()
    run_id = taken(house, MYSELF, process.pid, 2)
    house.in_state(run_id, S.RUNNING)
    house.close()
    (house.data / "leases" / ("ended" if ended else "") / f"{run_id}-1").write_bytes(content)
    house.open()
    assert house.run(run_id).state is S.RUNNING
    assert house.free() == 6, "its GPUs are nobody else's"
    house.do(Cancel(run_id), MYSELF)
    assert house.wait(run_id).state is S.CANCELLED
    assert process.wait(60) != 0


def test_a_cancelled_holder_that_lives_keeps_its_gpus_though_its_record_is_damaged(house, person):
    deaf = "trap '' TERM; echo deaf; while :; do sleep 1000; done"
    process = person("sh", "-c", deaf, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    run_id = taken(house, MYSELF, process.pid, 2)
    house.in_state(run_id, S.RUNNING)
    house.do(Cancel(run_id), MYSELF)
    house.close()
    assert process.poll() is None
    (house.data / "leases" / f"{run_id}-1").write_bytes(b"{}")
    house.open()
    assert (house.free(), process.poll()) in ((6, None), (8, -signal.SIGKILL))
    house.do(Cancel(run_id, grace_s=0.0), MYSELF)
    assert house.wait(run_id).state is S.CANCELLED
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


SERVER = """
import json, os, sys, time
from pathlib import Path
from rota.app.authz import Principal, Role
from rota.app.leases import Caller
from rota.config import Settings
from rota.main import open_rota
def say(word):  # a print of one thread may come between the word and the end of the line of another
    os.write(1, f"{word}\\n".encode())
with open_rota(Settings(Path(sys.argv[1]), simulated=(2, 4))) as rota:
    for pid, gpus in json.loads(sys.argv[2]):
        asked = rota.leases.ask(Caller(Principal("ann", Role.USER), 0), pid, gpus, f"key{pid}")
        asked.granted.add_done_callback(lambda done: say(done.result().run_id))
    while len(rota.service.view().runs) < 3:  # what is seen there is on disk, the waiting one too
        time.sleep(0.005)
    say("ready")
    sys.stdin.read()
"""


def test_a_server_killed_with_9_loses_no_lease_and_keeps_no_dead_one(build, person):
    house, staying, dying, waiting = build(), person(), person(), person()
    wanted = json.dumps([(staying.pid, 3), (dying.pid, 4), (waiting.pid, 8)])
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(house.data), wanted],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    with server:
        assert server.stdout is not None
        lines = [server.stdout.readline().strip() for _ in range(3)]
        kept, gone = [line for line in lines if line != "ready"]
        server.kill()
    end(dying)
    assert alive(staying.pid)
    house.open()
    assert house.wait(gone).state is S.SUCCEEDED
    assert house.run(kept).state in (S.STARTING, S.RUNNING)
    assert house.free() == 5
    (waits_on,) = (run.id for run in waits(house))
    rejoined = ask(house, waiting, 8, f"key{waiting.pid}")
    house.settled()
    assert set(house.rota.view().runs) == {kept, waits_on}, "it joined what was waiting"
    end(staying)
    grant = rejoined.granted.result(PATIENCE_S)
    assert (grant.run_id, len(grant.gpus)) == (waits_on, 8)


# -- schedules that are rare, forced -----------------------------------------------------------------------------------
class Deadlines:
    """Instead of the clock: what is due is done when the test says so, also when it was called off too late."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        self.acts.append(act)
        return lambda: None


@contextlib.contextmanager
def with_deadlines(house: House) -> Iterator[tuple[Leases, Deadlines]]:
    later = Deadlines()
    made = Leases(house.rota, house.parts.processes, later)
    made.open()
    yield made, later
    made.close()


def test_a_grant_that_comes_before_its_asker_listens_is_not_lost(house, person):
    send = house.rota.send

    def slow(who: Principal, command: Any) -> Future[Any]:
        sent: Future[Any] = send(who, command)
        if isinstance(command, Submit):
            sent.result(PATIENCE_S)
            house.settled()  # it is granted, and told, before anybody has asked to hear of it
        return sent

    with patch.object(house.rota, "send", slow):
        assert ask(house, person(), 2).granted.result(PATIENCE_S).gpus == (0, 1)
        assert ask(house, person(), 2, "k").granted.result(PATIENCE_S).gpus == (2, 3)


def test_who_comes_back_as_its_time_runs_out_keeps_what_it_was_told_it_has(house, person):
    holder, process = person(), person()
    given(house, holder, 8)
    with with_deadlines(house) as (made, later):
        first = made.ask(Caller(ANN, 0), process.pid, 8, "k")
        until(lambda: waits(house), "it waits")
        first.leave()
        expire = later.acts[-1]
        end(holder)
        until(lambda: not waits(house), "its turn has come, and nobody is there")
        house.settled()
        grant = made.ask(Caller(ANN, 0), process.pid, 8, "k").granted.result(PATIENCE_S)
        expire()  # was on its way already
        house.settled()
        assert house.run(grant.run_id).attempt.stop is None
        assert made.ask(Caller(ANN, 0), process.pid, 8, "k").granted.result(PATIENCE_S) == grant


def test_who_comes_back_too_late_begins_anew(house, person):
    holder, process = person(), person()
    given(house, holder, 8)
    with with_deadlines(house) as (made, later):
        first = made.ask(Caller(ANN, 0), process.pid, 8, "k")
        (old,) = until(lambda: waits(house), "it waits")
        first.leave()
        with house.occupied():
            later.acts[-1]()  # its withdrawal is sent, and not yet done
            again = made.ask(Caller(ANN, 0), process.pid, 8, "k")
        assert house.wait(old.id).state is S.CANCELLED
        end(holder)
        assert again.granted.result(PATIENCE_S).run_id != old.id


def test_what_is_given_in_the_turn_its_client_left_goes_back(house, person):
    process = person()
    with house.occupied():
        asked = ask(house, process, 8)
        asked.leave()
    (run,) = until(lambda: house.store.runs(RunFilter(limit=10)), "it came in")
    assert house.wait(run.id).state in ENDED
    assert process.poll() is None
    assert house.free() == 8


def test_a_lease_costs_no_picture_of_the_whole_house(house, person):
    with patch.object(Service, "view", side_effect=AssertionError("all live runs are copied")):
        assert ask(house, person(), 3).granted.result(PATIENCE_S).gpus == (0, 1, 2)
        with pytest.raises(Invalid, match="only 8 available"):
            ask(house, person(), 9)


def test_a_server_starts_and_works_where_no_process_can_be_watched(house, person):
    holder, waiter = person(), person()
    held = given(house, holder, 8)
    ask(house, waiter, 8, "k")
    until(lambda: waits(house), "one waits")
    house.close()

    def no_descriptor(self: LinuxProcesses, wanted: object, **more: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with (
        patch.object(LinuxProcesses, "_open", no_descriptor),
        patch.object(module, "WATCH_AGAIN_S", 0.05),
        patch.object(loop_module, "RECONCILE_S", 0.5),  # when the holder's end is looked for
    ):
        house.open()
        assert house.run(held).state in (S.STARTING, S.RUNNING)
        assert house.wait(house.submit("true", 0)).state is S.SUCCEEDED, "jobs notice nothing of it"
    until(lambda: leases(house)._waiters == 1, "it is watched as soon as that is possible")
    end(waiter)
    until(lambda: not waits(house), "and its end is seen")


def test_a_process_that_was_looked_at_is_not_looked_at_again(house, person, monkeypatch):
    """It decides how long a look takes, so the look is made before, in another thread; asking waits for nobody."""
    looked = leases(house).look(person().pid, "test")
    nobody = leases(house).look(0, "test")

    def refused(pid):
        raise AssertionError("it is not to be read now")

    for name in ("look", "attempt_of"):
        monkeypatch.setattr(leases(house)._processes, name, refused)
    assert leases(house).try_out(Caller(ANN, 0), looked, 1).state is S.QUEUED
    assert leases(house).ask(Caller(ANN, 0), looked, 1).granted.result(PATIENCE_S).gpus
    with pytest.raises(NotAlive):
        leases(house).ask(Caller(ANN, 0), nobody, 1)


def test_trying_out_takes_nothing(house, person):
    process = person()
    run = leases(house).try_out(Caller(ANN, 0), process.pid, 3, "k")
    assert (run.state, run.user, run.spec.request.gpus) == (S.QUEUED, "ann", 3)
    assert house.rota.view().runs == {}
    grant = ask(house, process, 3, "k").granted.result(PATIENCE_S)
    assert leases(house).try_out(Caller(ANN, 0), process.pid, 3, "k").id == grant.run_id
    with pytest.raises(Conflict, match="another number"):
        leases(house).try_out(Caller(ANN, 0), process.pid, 4, "k")
    with pytest.raises(Invalid):
        leases(house).try_out(Caller(ANN, 0), process.pid, 9)
    with pytest.raises(Forbidden):
        leases(house).try_out(Caller(Principal("eve", Role.VIEWER), 0), process.pid, 1)
    with pytest.raises(NotAlive):
        leases(house).try_out(Caller(ANN, 0), 0, 1)


# -- everything at once ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_asking_leaving_dying_and_cancelling_ends_well(house, person, seed):
    """Grants, deaths, departures, cancels, releases and restarts as they come: nothing is held twice or for ever."""
    chance = random.Random(seed)
    asked: list[tuple[subprocess.Popen[bytes], Asked]] = []
    gone: set[int] = set()  # clients that left: nobody reads their answers
    for step in range(60):
        act = chance.random()
        if act < 0.45 or not asked:
            process = person()
            asked.append((process, ask(house, process, chance.randrange(0, 9), chance.choice(["", f"k{step}"]))))
        elif act < 0.6:
            chance.choice(asked)[0].kill()
        elif act < 0.75:
            one = chance.randrange(len(asked))
            gone.add(one)
            asked[one][1].leave()
        elif act < 0.95:
            live = list(house.rota.view().runs)
            if live:
                house.rota.send(ROOT, chance.choice([Cancel, EndLease])(chance.choice(live)))
        else:
            house.reopen()
        assert house.rota.ask(lambda state, now: check(state)) == []
    for process, _ in asked:
        end(process)
    until(lambda: not house.rota.view().runs, "every lease has ended")
    stayed = [each.granted for n, (_, each) in enumerate(asked) if n not in gone]
    assert not wait_for_all(stayed, PATIENCE_S).not_done, "nobody waits for ever"
    assert house.free() == 8
    assert {run.state for run in house.store.runs(RunFilter(limit=1000))} <= ENDED
    assert (leases(house)._by_run, leases(house)._by_key, leases(house)._waiters) == ({}, {}, 0)
