"""What can be set of a policy: the word for each part, on the wire, in a file and for people, and what it is for."""

from __future__ import annotations

from typing import NamedTuple


class Knob(NamedTuple):
    word: str
    field: str  # of core.policy.Policy
    about: str


KNOBS = (
    Knob("scheduling_algorithm", "ordering", "Who is next: fcfs, priority, sjf, fair_share, srtf, las or auto."),
    Knob("max_concurrent_jobs", "max_concurrent", "Active at a time, in all; 0 = no limit."),
    Knob("enable_auto_retry", "auto_retry", "Runs that fail are tried again, as often as each of them allows."),
    Knob("enable_preemption", "preemption", "Runs that said they may be stopped are, for more urgent ones."),
    Knob("aging_seconds", "aging_s", "Waiting this long is worth one step of priority, under priority."),
    Knob(
        "half_life_seconds",
        "half_life_s",
        "After this long half of what was used is forgotten, under fair_share and in the shares of auto.",
    ),
    Knob("default_duration_seconds", "default_expected_s", "How long a run lasts of which nothing is known."),
    Knob("enable_correction", "corrects", "Correct declared times by what runs declared alike turned out to take."),
    Knob(
        "min_run_seconds",
        "min_run_s",
        "No run is stopped sooner after its start, longer after every stop. For a higher priority it counts once the "
        "run was stopped before, for a reservation if the run started before that was made, and for 5 min at most.",
    ),
    Knob("restart_cost_seconds", "restart_cost_s", "GPU time believed to be lost with every stop."),
    Knob(
        "max_reserved_gpu_seconds",
        "max_reserved_gpu_s",
        "What one person may reserve: in the last 7 days and ahead, used or not; 0 = only admins reserve.",
    ),
    Knob(
        "max_grace_seconds",
        "max_grace_s",
        "Longest time between the polite signal and SIGKILL that anybody but an admin may give a run; a stop on behalf "
        "of others never takes longer.",
    ),
    Knob(
        "max_checkpoint_grace_seconds",
        "max_checkpoint_grace_s",
        "The same for runs with a checkpoint signal, which need time to save; never below max_grace_seconds.",
    ),
    Knob("backfill", "backfill", "Who may pass one that waits for room: conservative, easy, skip or none."),
    Knob("backfill_depth", "backfill_depth", "How many are looked at in a pass behind the first that must wait."),
    Knob("margin", "margin", "How much more urgent one must be to stop another, under srtf, las and auto."),
    Knob("patience", "patience", "Under auto: having waited this share of its declared time it is twice as urgent."),
    Knob(
        "express",
        "express",
        "Under auto: this times the square root of all GPUs are left to runs of at most 4 h by longer ones that cannot "
        "be stopped; 0 = none.",
    ),
    Knob("packing", "packing", "Which of the nodes that have room: best_fit or fragment."),
    Knob("max_queue", "max_queue", "Runs that may wait, in all."),
    Knob("limits", "limits", "Of every person without limits of their own; 0 = no limit."),
    Knob("user_limits", "user_limits", "Of single people, in place of those."),
)
FIELDS = {knob.word: knob.field for knob in KNOBS}
ABOUT = {knob.word: knob.about for knob in KNOBS}
