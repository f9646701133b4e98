"""Turn this process into the user's command, which then owns pid, terminal, signals and exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress

from rota.cli.lease.acquire import Grant

NOT_FOUND, NOT_EXECUTABLE = 127, 126
# Python ignores these for itself, and what is ignored stays so across exec.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")


def environment(env: Mapping[str, str], grant: Grant) -> dict[str, str]:
    """The caller's own, and what says which GPUs are its."""
    made = {
        **env,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": grant.gpus,
        "ROTA_GPUS": grant.gpus,
        "ROTA_JOB_ID": grant.job_id,
    }
    made.setdefault("SLURM_JOB_ID", grant.job_id)  # W&B and the like look for it; a real Slurm's stays
    return made


def missing(command: str, env: Mapping[str, str]) -> tuple[int, str] | None:
    """Why it cannot be run, known before any waiting: exit code and message."""
    if "/" in command:
        places = [command]
    else:
        places = [os.path.join(place or ".", command) for place in env.get("PATH", os.defpath).split(os.pathsep)]
    found = [place for place in places if os.path.isfile(place)]
    if any(os.access(place, os.X_OK) for place in found):
        return None
    if found or os.path.isdir(command):
        return NOT_EXECUTABLE, f"{command}: not executable"
    return NOT_FOUND, f"{command}: command not found"


def become(argv: Sequence[str], env: MutableMapping[str, str]) -> tuple[int, str]:
    """Returns only when it cannot: exit code and message."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    for name in _IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - the whole point
    except FileNotFoundError:
        return NOT_FOUND, f"{argv[0]}: command not found"
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            return NOT_EXECUTABLE, f"{argv[0]}: not a program, and no #! line says what runs it"
        return NOT_EXECUTABLE, f"{argv[0]}: {error.strerror}"
    except ValueError as error:  # a NUL inside
        return NOT_EXECUTABLE, f"{argv[0]!r}: {error}"
