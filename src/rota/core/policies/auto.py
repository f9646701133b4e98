"""What we recommend: near their end first, corrected by what people's declarations turned out to be worth, with the
patience of each run measured by its own length.

    standing = left x share / priority / (1 + waited / (patience x declared))

- `left`: how much is left of it as far as anybody can know (core/belief.py): what was declared, corrected by how long
  runs lasted that were declared alike. It never sees a run's true length.
- `waited / declared`: with a patience of 1 a run that has waited as long as it said it would take is twice as urgent.
  Measured by its own length, no run waits long compared with what it is worth to wait for: short ones get their turn
  at once, wide and long ones are not passed for ever. A fixed age limit would either do nothing or let the long ones
  block all.
- `declared`: the time limit with the grace beyond the usual one (core/grace.py), which a run can take as well; of a run
  without a limit, what is expected of it.
- `share`: who has used more than the others of late stands back, who has used less goes before, within bounds.
- `priority`: each step up to high counts as a hundred times shorter, so a low one still gets its turn. A critical run
  goes before everything of lower priority, however short that is or long it has waited.

A run may stop another whose standing is worse by `margin`, if that one is preemptible, keeps its work in checkpoints,
and has had its `min_run_s` since it last started. Without such runs it is shortest first with a reservation for the
first that does not fit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rota.core.belief import STEPS, bucket, nearness, of_bucket
from rota.core.express import stays
from rota.core.grace import planned_s
from rota.core.policy import Policy
from rota.core.progress import done_s
from rota.core.run import NORMAL, Run

PRIORITY_STEP = 100.0
BRIEF_S = 600.0
AGAIN = 0.25
CRITICAL = 4
# Standings of lower priorities are above 1e-11 (1 s left, high, ten years of waiting with the least patience), and
# without this weight none is above 1e9 (ten years left): critical runs stand before all of them.
CRITICAL_WEIGHT = 1e-30
_WEIGHT = tuple(
    CRITICAL_WEIGHT if priority >= CRITICAL else PRIORITY_STEP ** (NORMAL - priority) for priority in range(6)
)

Band = tuple[int, int, int, bool, bool]
STAYS = 4
PARTS = 5


def band(policy: Policy, run: Run) -> Band:
    """Alike in all that moves: those who are then stand in the order they came, whatever the time."""
    bound = planned_s(policy, run)
    return (
        nearness(run.belief, bound, run.attained_s),
        coarse(bound),
        run.priority,
        run.spec.preemptible,
        stays(policy, run),
    )


@lru_cache(maxsize=1 << 12)
def coarse(seconds: float) -> int:
    """The declared time, by doublings: it only sets a pace, and lanes should be few. Nobody's patience is shorter than
    that of a run of ten minutes: a stream of tiny runs would pass whoever has a reservation, one by one."""
    return STEPS * round(bucket(max(seconds, BRIEF_S)) / STEPS)


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (run.submitted_at + run.attained_s, run.seq)


def of_lane(policy: Policy, band: tuple[Any, ...], since: float, now: float, share: float) -> float:
    """The standing of the first of a lane, from what the lane shares (`band`) and the first part of its key."""
    return at(paced(policy, band), now - since, share)


def at(pace: tuple[float, float], waited: float, share: float) -> float:
    near, faster = pace
    return near * share / (1.0 + waited * faster) if waited > 0.0 else near * share


def paced(policy: Policy, band: tuple[Any, ...]) -> tuple[float, float]:
    """How far from its end a run is, weighed by its priority, and how fast waiting makes it more urgent."""
    left, bound, priority = band[:3]
    return of_bucket(left) * _WEIGHT[priority], 1.0 / (policy.patience * of_bucket(bound))


def standing(policy: Policy, run: Run, now: float, share: float) -> float:
    done, bound = done_s(policy, run, now), planned_s(policy, run)
    band = (nearness(run.belief, bound, done), coarse(bound), run.priority)
    return of_lane(policy, band, run.submitted_at + done, now, share)


def length_s(band: tuple[Any, ...]) -> float:
    """About how long those of a lane declared that they take."""
    return of_bucket(band[1])


def patience_at(policy: Policy, run: Run, now: float, times: float) -> float:
    """When a waiting run may be so many times as urgent as it is against another: by waiting alone, and since that one
    can fall back meanwhile, to be asked again before it has waited for much longer."""
    pace_s = policy.patience * of_bucket(coarse(planned_s(policy, run)))
    waited = max(0.0, now - run.submitted_at - run.attained_s)
    return now + (pace_s + waited) * min(times - 1.0, AGAIN)
