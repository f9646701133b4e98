"""Work on dry runs, and make the runs of sweeps, in threads of their own.

A dry run costs what the command costs, and nothing that is written down bounds how many there are. A sweep takes a
second to write out and megabytes to keep until it is taken in, so whichever waits is not written out yet. One caller
has one of the threads of each kind at a time, and for half of the time.
"""

from __future__ import annotations

from rota.api.filereads import FileReads

THREADS = 2
SWEEP_THREADS = 4  # each waits for the writer, too
LOOKUP_THREADS = 8
MAX_CALLS = 2048  # worked on and waiting
MAX_OF_ONE, MAX_SWEEPS_OF_ONE = 256, 64  # of them, by one caller
LIMIT_S = 60.0  # for both together


def lookup_threads() -> FileReads:
    return FileReads(
        "rota-lookup",
        threads=LOOKUP_THREADS,
        of_one=LOOKUP_THREADS // 4,
        calls=2 * MAX_CALLS,
        calls_of_one=MAX_CALLS,
        limit_s=LIMIT_S,
        doing="looking up what is to be changed for",
    )


def trial_threads() -> FileReads:
    return FileReads(
        "rota-trial",
        threads=THREADS,
        of_one=1,
        calls=MAX_CALLS,
        calls_of_one=MAX_OF_ONE,
        limit_s=LIMIT_S,
        rest=1.0,
        doing="a dry run for",
    )


def sweep_threads() -> FileReads:
    return FileReads(
        "rota-sweep",
        threads=SWEEP_THREADS,
        of_one=1,
        calls=MAX_CALLS,
        calls_of_one=MAX_SWEEPS_OF_ONE,
        limit_s=None,
        rest=1.0,
        doing="a sweep of",
    )
