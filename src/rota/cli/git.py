"""Run git on a checkout without running anything that the checkout names.

A checkout may lie in a directory that others can write to, and its configuration can name programs: hooks, filters,
file system monitors, diff and text converters, transports, credential helpers. Filters and diff drivers have names of
their own, so that no option of git turns all of them off. So git gets another configuration: `GIT_COMMON_DIR` is a
private directory with the objects and refs of the checkout and a configuration of the few settings that say how
files are written (line ends, modes, sparse checkouts). The checkout's own configuration is listed once, and never used.

What a filter would have changed stays as it is in git: a Git LFS file that is checked out here is its pointer. Nothing
is fetched, and submodules are not entered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

KEPT = frozenset({
    "core.autocrlf", "core.bigfilethreshold", "core.checkroundtripencoding", "core.checkstat", "core.eol",
    "core.excludesfile", "core.filemode", "core.ignorecase", "core.precomposeunicode", "core.protecthfs",
    "core.protectntfs", "core.sparsecheckout", "core.sparsecheckoutcone", "core.symlinks", "core.trustctime",
    "index.sparse",
})  # fmt: skip
FORMATS = ("extensions.objectformat", "extensions.refstorage")  # how objects and refs are stored
SHARED = ("refs", "packed-refs", "shallow", "reftable")  # of the checkout's common directory, besides objects
GIT = (
    "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=true",
    "-c", "color.ui=false", "-c", "credential.helper=", "-c", "submodule.recurse=false",
)  # fmt: skip
# Variables that say which configuration is the caller's own. All others of git's would reach into other repositories,
# name programs or write traces: GIT_DIR in a hook, GIT_EXTERNAL_DIFF, GIT_SSH_COMMAND, GIT_TRACE.
OWN = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES")
QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": "none",  # a missing object of a partial clone is not fetched
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
MAX_ANSWER = 512 * 1024


class Sealed:
    """A checkout whose configuration is not used. `env` is for any git command on it."""

    def __init__(self, env: Mapping[str, str], config: Mapping[str, str]) -> None:
        self.env, self.config = env, config


def careful() -> dict[str, str]:
    """The environment for a git command that reads the checkout's own configuration: to list it, or to add a worktree
    without checking it out."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in OWN} | QUIET


@contextmanager
def sealed(root: str, deadline: float) -> Iterator[Sealed | None]:
    """Use a checkout without its configuration; None = git does not answer, or does not take it for a checkout."""
    where, listed = ask(
        root, careful(), deadline, ("rev-parse", "--absolute-git-dir", "--git-common-dir"), ("config", "--list", "-z")
    )
    lines = os.fsdecode(where or b"").splitlines()
    if len(lines) != 2 or listed is None:
        yield None
        return
    config = dict(entry.partition("\n")[::2] for entry in os.fsdecode(listed).split("\0"))
    place = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"rota-git-{os.urandom(8).hex()}")  # noqa: S108 - private
    try:
        common = os.path.join(root, lines[1])
        _fill(place, common, config)
        env = careful() | _variables(config)
        env |= {"GIT_DIR": lines[0], "GIT_COMMON_DIR": place, "GIT_WORK_TREE": root}
        env |= {"GIT_OBJECT_DIRECTORY": os.path.join(common, "objects"), "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        yield Sealed(env, config)
    finally:
        for name in ("config", *SHARED):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(place, name))
        with suppress(OSError):
            os.rmdir(place)


def _fill(place: str, common: str, config: Mapping[str, str]) -> None:
    os.mkdir(place, 0o700)
    formats = {name.partition(".")[2]: config[name] for name in FORMATS if config.get(name, "").isalnum()}
    lines = ["[core]", f"\trepositoryformatversion = {1 if formats else 0}", "[extensions]"]
    lines += [f"\t{name} = {value}" for name, value in formats.items()]
    with open(os.path.join(place, "config"), "x", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    for name in SHARED:
        if os.path.exists(os.path.join(common, name)):
            os.symlink(os.path.join(common, name), os.path.join(place, name))


def _variables(config: Mapping[str, str]) -> dict[str, str]:
    kept = [(name, value) for name, value in config.items() if name in KEPT]
    variables = {"GIT_CONFIG_COUNT": str(len(kept))}
    for number, (name, value) in enumerate(kept):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def ask(root: str, env: Mapping[str, str], deadline: float, *questions: Sequence[str]) -> list[bytes | None]:
    """Git's answers, asked all at once; None = it failed, said nothing in time, or said more than we keep."""
    import subprocess

    running: list[subprocess.Popen[bytes] | None] = []
    for words in questions:
        try:
            running.append(
                subprocess.Popen(
                    [*GIT, "--no-optional-locks", "-C", root, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=env,
                )
            )
        except OSError:  # no git on this machine
            running.append(None)
    return _collect(running, deadline)


def _collect(running: Sequence[Any], deadline: float) -> list[bytes | None]:
    import select
    import time

    heard = {process.stdout.fileno(): bytearray() for process in running if process is not None}
    poll = select.poll()
    for number in heard:
        poll.register(number, select.POLLIN | select.POLLHUP)
    open_ones = set(heard)
    while open_ones and (left_s := deadline - time.monotonic()) > 0:
        for number, _ in poll.poll(left_s * 1000):
            data = os.read(number, 65536)
            heard[number] += data
            if not data or len(heard[number]) > MAX_ANSWER:
                poll.unregister(number)
                open_ones.discard(number)
    answers: list[bytes | None] = []
    for process in running:
        if process is None:
            answers.append(None)
            continue
        data = bytes(heard[process.stdout.fileno()])
        cut = process.stdout.fileno() in open_ones or len(data) > MAX_ANSWER
        if cut:
            process.kill()
        process.stdout.close()
        code = process.wait()
        answers.append(data if code == 0 or (cut and len(data) > MAX_ANSWER) else None)
    return answers
