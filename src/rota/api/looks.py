"""Looks at processes of callers, in threads of their own.

The command line and the environment of a process are read under a lock of its own memory, which it can hold for
seconds. So the event loop never reads them: an account gets a few threads, and a look that takes long tells nothing.
"""

from __future__ import annotations

from rota.api.filereads import FileReads

OF_ONE_ACCOUNT = 2  # threads
# A look takes a millisecond. Who has too many waiting is asked to come again, so it is more than people send at once.
CALLS, CALLS_OF_ONE_ACCOUNT = 4096, 1024
LIMIT_S = 3.0


def lookers() -> FileReads:
    return FileReads(
        "rota-looks",
        of_one=OF_ONE_ACCOUNT,
        calls=CALLS,
        calls_of_one=CALLS_OF_ONE_ACCOUNT,
        limit_s=LIMIT_S,
        doing="looking at a process for",
    )
