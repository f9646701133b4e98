"""How sure a start is: what is foretold comes true as often as it says, on work whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

from rota.core import events as e
from rota.core import odds as odds_module
from rota.core.calibrate import Correction, Foretold, Scored, sheet
from rota.core.check import check
from rota.core.expect import expect
from rota.core.odds import MOST, Scenarios, quantile, share
from rota.core.policy import Policy
from rota.core.presets import NAMES, named
from rota.core.reservation import Reservation
from rota.core.resources import Slice
from rota.core.run import Cause, Exit
from tests.unit.core.kit import LOW, Lab, node, spec, two_by_eight


def test_over_all_walks_a_run_gets_a_length_out_of_every_part_of_what_is_known():
    for run_id in ("000000000001", "000000000002", "abcdef012345", ""):
        drawn = sorted(share(run_id, walk, MOST) for walk in range(MOST))
        assert [int(u * MOST) for u in drawn] == list(range(MOST))


def test_runs_are_drawn_apart_from_each_other():
    """Two runs that are long in the same walks would make every forecast too wide."""
    together = []
    for n in range(200):
        one, other = f"{n:012x}", f"{n + 1:012x}"
        pairs = [(share(one, walk, MOST) - 0.5, share(other, walk, MOST) - 0.5) for walk in range(MOST)]
        together.append(sum(a * b for a, b in pairs) / MOST * 12)
    assert abs(sum(together) / len(together)) < 0.1


def test_quantiles_of_few_draws():
    assert quantile([10.0, 20.0, 30.0], 0.5) == 20
    assert quantile([10.0, 20.0, 30.0], 0.9) == 30
    assert quantile([10.0, math.inf, math.inf], 0.9) is None


def test_the_same_question_has_the_same_answer_and_changes_nothing():
    lab = crowd()
    last = max(lab.state.runs)
    version, free = lab.state.version, list(lab.state.board.free)
    assert Scenarios(lab.state, lab.now).odds(last) == Scenarios(lab.state, lab.now).odds(last)
    assert (lab.state.version, lab.state.board.free) == (version, free)


def test_what_was_asked_before_does_not_change_what_is_answered():
    lab = crowd()
    ids = sorted(lab.state.queue._where)
    ways = Scenarios(lab.state, lab.now)
    told = {run: ways.odds(run) for run in reversed(ids)}
    assert all(Scenarios(lab.state, lab.now).odds(run).p50 == told[run].p50 for run in ids[:3])


def crowd(waiting: int = 12) -> Lab:
    lab = Lab(node("a"), policy=Policy(preemption=False), checked=False)
    for n in range(waiting + 4):
        lab.submit(2, takes=100 + n, user=f"u{n % 3}")
    lab.step()
    return lab


def test_who_goes_at_once_is_told_so_and_who_cannot_is_told_nothing():
    lab = Lab(node("a"))
    fine, held, wide = lab.submit(1), lab.submit(1, held=True), lab.submit(16)
    ways = Scenarios(lab.state, 5.0)
    assert (ways.odds(fine).p50, ways.odds(fine).p90, ways.odds(fine).confidence) == (5.0, 5.0, "good")
    assert ways.odds(held).p50 is None
    assert ways.odds(wide).p50 is None


def test_the_less_is_known_the_wider_it_is():
    def width(lab: Lab) -> float:
        run = lab.submit(8)
        odds = Scenarios(lab.state, lab.now).odds(run)
        assert odds.p50 is not None and odds.p90 is not None
        return odds.p90 - odds.p50

    known, unknown = Lab(node("a")), Lab(node("a"))
    for ran_s in (95, 98, 100, 102, 105, 107):
        known.state.history.learn("ann", spec(8), ran_s)
    for lab in (known, unknown):
        lab.submit(8, takes=100)
        lab.step()
    assert width(known) < 40 < width(unknown)


@pytest.mark.parametrize(("seen", "confidence"), [(3, "fair"), (8, "fair"), (9, "good")])
def test_a_few_earlier_runs_are_not_enough_to_call_it_good(seen, confidence):
    lab = Lab(node("a"))
    for number in range(seen):
        lab.state.history.learn("ann", spec(8), 2.0 + number / 100)
    lab.submit(8)
    lab.step()
    odds = Scenarios(lab.state, lab.now).odds(lab.submit(8))
    assert odds.rests_on == "how long 1 run will take: 1 by earlier runs"
    assert odds.confidence == confidence


def test_it_says_what_it_rests_on():
    lab = Lab(node("a"))
    for ran_s in (95, 98, 100):
        lab.state.history.learn("ann", spec(4), ran_s)
    lab.submit(4)
    lab.submit(4, user="bob")
    lab.step()
    odds = Scenarios(lab.state, lab.now).odds(lab.submit(8))
    assert odds.rests_on == "how long 2 runs will take: 1 by earlier runs, 1 by an estimate"
    assert odds.scenarios == MOST


def test_who_makes_way_is_part_of_what_is_foretold():
    lab = Lab(node("a"), policy=named("priority", Policy(min_run_s=0.0)))
    lab.set(Policy(ordering=lab.state.policy.ordering, preemption=True))
    lab.submit(8, takes=1e5, preemptible=True, priority=LOW, grace_s=30.0)
    lab.step()
    lab.now = 500.0
    run = lab.submit(8, priority=3)
    odds = Scenarios(lab.state, lab.now).odds(run)
    assert (odds.p50, odds.p90) == (530, 530), "after the grace of the one that is stopped, not after its end"


def test_what_is_reserved_stays_so_whoever_ends():
    lab = Lab(*two_by_eight())
    lab.submit(8, takes=5000.0)
    lab.step()
    kept = Reservation("r1", "ann", "", 0.0, 9000.0, (Slice("b", 0xFF),), 0.0)
    lab.tell(e.ReservationMade(at=0.0, reservation=kept))
    all_of_it, half = lab.submit(16), lab.submit(8)
    scenarios = Scenarios(lab.state, lab.now)
    assert scenarios.odds(all_of_it).least == 9000.0
    assert scenarios.odds(half).least < 10.0


def test_far_ahead_it_is_told_from_the_work_and_called_rough(monkeypatch):
    monkeypatch.setattr(odds_module, "BUDGET", 60_000)
    lab = Lab(node("a", gpus=1), policy=named("easy"), checked=False)
    runs = [lab.submit(takes=100.0) for _ in range(400)]
    lab.step()
    odds = Scenarios(lab.state, lab.now).odds(runs[-1])
    assert odds.confidence == "rough"
    assert odds.p50 is not None and odds.p90 is not None
    assert 0.7 < odds.p50 / 40_000 < 1.4
    assert odds.p50 < odds.p90 < 2 * odds.p50


@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_policy_walks_are_true_to_the_ledger(name):
    """With stops, fillers and reservations about: what a walk goes through is a state like any other."""
    for seed in range(3):
        chance = random.Random(seed)
        lab = Lab(*two_by_eight(), policy=named(name, Policy(min_run_s=20.0)), checked=False)
        kept = Reservation("r1", "cid", "", 400.0, 900.0, (Slice("a", 0x0F),), 0.0)
        lab.tell(e.ReservationMade(at=0.0, reservation=kept))
        for n in range(14):
            stoppable = chance.random() < 0.5
            lab.submit(
                chance.choice([1, 2, 4, 8, 16]),
                user=chance.choice(["ann", "bob", "cid"]),
                takes=chance.choice([30, 300, 3000]) + n / 16,
                priority=chance.choice([1, 2, 3]),
                preemptible=stoppable,
                saves=stoppable and chance.random() < 0.7,
                filler=stoppable and chance.random() < 0.2,
                grace_s=chance.choice([0.0, 10.0]),
                reservation=chance.choice(["", "", "", "r1"]),
            )
            if chance.random() < 0.5:
                lab.until(lab.now + chance.choice([0, 10, 100]))
        ways = Scenarios(lab.state, lab.now)
        for run_id in sorted(lab.state.queue._where):
            odds = ways.odds(run_id)
            if odds.p50 is not None and odds.p90 is not None:
                assert lab.now <= odds.p50 <= odds.p90
        for walk in ways._walks[:4]:
            assert check(walk.world) == []
        assert check(lab.state) == []


# -- are they right? --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """A command that somebody runs again and again."""

    user: str
    argv: tuple[str, ...]
    gpus: int
    typical_s: float
    spread: float


class Team(Lab):
    """People who come by chance, with commands whose lengths only the past tells."""

    def __init__(self, seed: int, policy: Policy, load: float) -> None:
        super().__init__(*two_by_eight(), policy=policy, checked=False)
        self.chance = random.Random(seed)
        self.kinds = [
            Kind(
                user=f"u{self.chance.randrange(4)}",
                argv=(f"train-{chr(97 + n)}",),
                gpus=self.chance.choice([1, 1, 2, 2, 4, 8]),
                typical_s=self.chance.lognormvariate(math.log(900), 1.0),
                spread=self.chance.choice([0.1, 0.3, 0.6]),
            )
            for n in range(10)
        ]
        work = sum(kind.gpus * kind.typical_s * math.exp(kind.spread**2 / 2) for kind in self.kinds)
        self.gap_s = work / len(self.kinds) / (16 * load)

    def arrive(self) -> str:
        self.pass_time(self.now + self.chance.expovariate(1 / self.gap_s))
        kind = self.chance.choice(self.kinds)
        wanted = spec(kind.gpus, argv=kind.argv)
        expected_s, source, belief = expect(self.state, kind.user, wanted)
        seq = self.state.next_seq
        run_id = f"{seq:012x}"
        self.true_s[run_id] = kind.typical_s * self.chance.lognormvariate(0, kind.spread)
        self.tell(
            e.RunSubmitted(
                at=self.now, run_id=run_id, seq=seq, user=kind.user, spec=wanted, held=False, waiting_on=(),
                expected_s=expected_s, expected_from=source, belief=belief,
            )
        )  # fmt: skip
        self.step()
        return run_id

    def pass_time(self, then: float) -> None:
        while True:
            ends = sorted((self.ends_at(run), run.id) for run in self.active())
            if not ends or ends[0][0] > then:
                break
            self.now, run_id = ends[0]
            attempt = self.run(run_id).attempt
            assert attempt is not None
            self.end(run_id, Exit(Cause.EXITED, code=0, started_tick=attempt.planned_at, ended_tick=self.now))
            self.state.retire(run_id)
            self.state.touched.clear()
            self.step()
        self.now = then


@pytest.mark.parametrize(("name", "seed"), [("easy", 3), ("auto", 1)])
def test_what_is_foretold_comes_true_as_often_as_it_says(name, seed):
    """Under auto others come later and go first, which no walk can know: what earlier predictions were off by does."""
    team = Team(seed, named(name, Policy(preemption=False)), load=0.85)
    scored: list[Scored] = []
    asked: dict[str, tuple[float, Foretold]] = {}
    for n in range(260):
        run_id = team.arrive()
        if n > 60 and run_id in team.state.queue:
            odds = Scenarios(team.state, team.now).odds(run_id)
            assert odds.p50 is not None and odds.p90 is not None
            told = Correction(scored).corrected(odds.p50 - team.now, odds.p90 - team.now)
            asked[run_id] = (team.now, told)
        for run in [run for run in asked if run in team.started]:
            at, foretold = asked.pop(run)
            scored.append(Scored(foretold, team.started[run][0] - at))
    every = sheet(scored)[0]
    assert every.count > 80, "there must be waiting to foretell"
    assert every.by_p50 is not None and 0.35 < every.by_p50 < 0.65, every
    assert every.by_p90 is not None and 0.80 < every.by_p90 < 0.98, every
