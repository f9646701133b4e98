"""Decide which processes of an attempt get a signal, and say what came of it.

A program is a process that was started by an exec, together with what it forked without one: data loaders, pools. A
fork inherits the handlers of the program and runs them on an old copy of its state, so a loader that is asked to save
writes step 0 over the checkpoint. Hence, for every signal but KILL: **a fork that has a handler is not signalled if its
program has one too, or if its program's first process is gone.** Beyond that:

A *message* ("save now": a warning, a checkpoint signal) goes to the topmost process with a handler on each branch of
the tree. A launcher without one is passed through to what it started. Below a process with a handler nothing is
signalled: passing the message on is up to that process.

A *polite end* (TERM, INT, HUP, QUIT) goes to all other processes, at any depth; but to a launcher without a handler
only when no program with one is left below it, because it would die at once, and everything that still saves with it.

Two things do not prove that a program has a handler. Bash with a trap on EXIT, and the runtime of Go, catch every
signal: such a process counts only if nothing below it has a handler. And every Python and every waiting shell catches
INT; so INT and QUIT, which a terminal sends to all as well, go to all programs with a handler, not to the topmost only.
And `timeout` sends what it gets to its whole process group, forks included, so it counts as bash does.

A program may take its handler off while it saves, so as not to be interrupted. Who had a handler at an earlier look
counts as having it for as long as its program runs (see Handlers): else its forks would look like programs, and its
launchers like idle ones.

All below the calling process is the attempt's. Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

import os
import signal

from rota.adapters.backends import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

POLITE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
FROM_A_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})
# no program catches all of these on purpose: a process that does so catches every signal
ANYTHING = (signal.SIGTRAP, signal.SIGSYS, signal.SIGALRM, signal.SIGVTALRM, signal.SIGUSR1, signal.SIGUSR2)
# A run whose processes fork ahead of a look would make it last as long as they like, and all else waits for its end.
LOOK_S = 2.0  # by time_awake
# From the beginning of a look: then nothing is sent any more but KILL. Who waited for the look has gone on without it.
TELL_S = LOOK_S + 1.0
MAX_FOUND = 20_000  # processes; by default a run may have a few thousand
LEAVE_S = 1.0  # a launcher whose programs have all ended has this long to leave by itself
# Launchers with handlers of their own: for what they send to their process group, or for their own settings (xargs).
PASS_ON = frozenset({b"timeout", b"xargs"})


class Handlers:
    """The handlers that the processes of an attempt have, or had at an earlier look."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], int] = {}  # an exec leaves a process no handler

    def add(self, pid: int, origin: procs.Origin, mask: int) -> int:
        """Return these together with those that it had."""
        key = (pid, origin.start, origin.image)
        had = self._seen.get(key, 0)
        if mask | had != had and (key in self._seen or len(self._seen) < MAX_FOUND):
            self._seen[key] = mask | had
        return mask | had


class Process:
    """One process of a tree at one look, and what follows from its place in it."""

    __slots__ = ("above", "catches", "gone", "kin", "listens", "origin", "over", "pid", "spared", "took_off")

    def __init__(
        self, pid: int, origin: procs.Origin, above: Process | None, signum: int, handlers: Handlers | None
    ) -> None:
        self.pid, self.origin, self.above = pid, origin, above
        now = mask = 0
        if not origin.dead and signum != signal.SIGKILL:
            now = procs.caught(pid)
            mask = now if handlers is None else handlers.add(pid, origin, now)
        self.catches = _has(mask, signum)
        self.took_off = self.catches and not _has(now, signum)
        self.gone = self.kin = False  # its program's first process is gone; one of its program above it has a handler
        if origin.forked and (above is None or not origin.may_be_fork_of(above.origin)):
            self.gone = True
        elif origin.forked and above is not None:
            self.gone, self.kin = above.gone, above.kin or above.catches
        self.spared = origin.forked and self.catches and (self.gone or self.kin)
        self.listens = not self.spared and _catches_on_purpose(mask, signum) and not _passes_on(pid)
        self.over = False  # something below it listens

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.origin.start

    def send(self, signum: int) -> bool:
        """Signal it, if the pid is still its own. That it is below us was seen when its start time was."""
        return procs.send_to(self.pid, self.origin.start, signum)


def _has(mask: int, signum: int) -> bool:
    return bool(mask >> (signum - 1) & 1)


def _catches_on_purpose(mask: int, signum: int) -> bool:
    return _has(mask, signum) and not all(_has(mask, number) for number in ANYTHING)


def _passes_on(pid: int) -> bool:
    seen = procs.name_and_parent(pid)
    return seen is not None and seen[0] in PASS_ON


def listening(signum: int, leaders: Iterable[int]) -> list[int]:
    """Return those of the tasks, children of the calling process that it has not reaped, that are to get this signal
    whatever is below them: each is a program, and nothing of the attempt is above it."""
    return [pid for pid in leaders if _catches_on_purpose(procs.caught(pid), signum)]


def look(
    signum: int, top: int, *, stranger: bool = True, whole: bool = False, handlers: Handlers | None = None
) -> list[Process]:
    """Every process below `top`, parents before children. Of a stranger, such as a shim, no process is a fork: it has
    only taken in those whose own parent has ended.

    A look ends after LOOK_S, or with MAX_FOUND processes, and returns what it has found by then; `whole`: it raises
    TimeoutError instead, for who concludes from what is missing."""
    give_up = procs.time_awake() + LOOK_S
    found: list[Process] = []
    first = procs.origin(top)
    head = None if stranger or first is None else Process(top, first, None, signum, handlers)
    if head is not None:
        head.gone = head.spared = False  # whatever it is a fork of: it is the program here
    todo: list[tuple[int, Process | None]] = [(top, head)]
    own = os.getpid()
    began: dict[int, int] = {}  # when each of those found did
    cut = False
    while todo and not cut:
        pid, above = todo.pop()
        for child in procs.children(pid):
            if cut := len(found) >= MAX_FOUND or procs.time_awake() >= give_up:
                todo.append((pid, above))
                break
            origin = procs.origin(child)
            # What has lost its parent since it was listed has one above that: the supervisor, or one found before.
            if origin is not None and (origin.parent in (pid, own) or not stranger or _lives(origin.parent, began)):
                each = Process(child, origin, above, signum, handlers)
                found.append(each)
                began[child] = origin.start
                if not origin.dead:
                    todo.append((child, each))
    if cut and whole:
        raise TimeoutError("it has too many processes, or they fork too fast, to be looked at")
    for _, unseen in todo:  # something may listen below it
        if unseen is not None:
            unseen.over = True
    for each in reversed(found):
        if each.above is not None and (each.listens or each.over):
            each.above.over = True
    return found


def _lives(pid: int, began: dict[int, int]) -> bool:
    """Whether a process that was found is still there, and its number not a stranger's."""
    return pid in began and procs.start_time(pid) == began[pid]


def message(signum: int, handlers: Handlers) -> bool:
    """Send a message. False: no process has a handler for it."""
    until = procs.time_awake() + TELL_S
    addressees = _addressees(look(signum, os.getpid(), handlers=handlers), signum)
    told = [each.took_off or each.send(signum) for each in _until(until, addressees)]
    return any(told)


def kill_all() -> list[int]:
    """Send SIGKILL to every process below us that one look finds; their pids."""
    left = look(signal.SIGKILL, os.getpid())
    for each in left:
        if not each.origin.dead:
            each.send(signal.SIGKILL)
    return [each.pid for each in left]


class Asking:
    """A request to end that is under way: which processes were signalled, and whether launchers are still to be.

    `heard`: a program has a handler for the signal. `waiting`: some launcher is left; call `again` now and then."""

    def __init__(self, signum: int, leaders: Iterable[int], handlers: Handlers, *, saves: bool = False) -> None:
        self._signum, self._handlers, self._saves = signum, handlers, saves
        self._told: set[tuple[int, int]] = set()
        self._since: dict[tuple[int, int], float] = {}  # untold, and nothing keeps it from being told
        self.waiting = False
        self._until = procs.time_awake() + TELL_S
        seen = self._look()
        self.heard = any(each.listens for each in seen)
        if signum not in POLITE:
            self._send_message(seen, leaders)
        elif saves and self.heard:  # first a message only: helpers must live as long as their program saves
            self._tell(_addressees(seen, signum), is_message=True)
            self.waiting = True
        else:
            self._tell([each for each in seen if not each.spared and not _waits(each)])
            self.waiting = any(_waits(each) for each in seen)

    def again(self) -> None:
        """Signal each launcher that has outlived its programs, and what it has started since: a script must not go on
        with its next line."""
        now = procs.time_awake()
        self._until = now + TELL_S
        seen = self._look()
        saving = self._saves and any(each.listens and each.key in self._told for each in seen)
        free = [] if saving else [each for each in seen if not each.spared and not _waits(each)]
        since = self._since
        self._since = {each.key: since.get(each.key, now) for each in free if each.key not in self._told}
        self._tell([each for each in free if now - self._since.get(each.key, now) >= LEAVE_S])
        self.waiting = saving or bool(self._since) or any(_waits(each) for each in seen)

    def unheeded(self, waited_s: float) -> str:
        """Say of those that are still there when their grace is over how they took it, by the last look: another one
        would put the kill off."""
        if self._caught:
            return outlived(self._signum, waited_s)
        return f"it ignored {name(self._signum)} and was killed after its grace of {waited_s:.3g} s"

    def _look(self) -> list[Process]:
        seen = look(self._signum, os.getpid(), handlers=self._handlers)
        self._caught = any(each.catches and not each.spared for each in seen)
        return seen

    def _tell(self, addressees: Iterable[Process], *, is_message: bool = False) -> None:
        for each in _until(self._until, addressees):
            self._told.add(each.key)
            if not (is_message and each.took_off):  # it saves by now, and would die of another one
                each.send(self._signum)
            each.send(signal.SIGCONT)  # a stopped process hears nothing

    def _send_message(self, seen: list[Process], leaders: Iterable[int]) -> None:
        """A message that nothing has a handler for goes to the process group of each leader, as from a terminal."""
        addressees = _addressees(seen, self._signum)
        if not addressees:
            groups = frozenset(leaders)  # not reaped yet, so the number of its group is still its own
            addressees = [each for each in seen if not each.spared and groups & {each.pid, each.origin.group}]
        for each in _until(self._until, addressees):
            if not each.took_off:
                each.send(self._signum)


def _until(end: float, addressees: Iterable[Process]) -> Iterator[Process]:
    """Yield these for as long as something may be sent."""
    for each in addressees:
        if procs.time_awake() >= end:
            return
        yield each


def _waits(each: Process) -> bool:
    return each.over and not each.listens


def _addressees(seen: list[Process], signum: int) -> list[Process]:
    """Choose who gets a message. On a branch where nothing listens this is the topmost that catches every signal."""
    if signum in FROM_A_KEYBOARD:
        return [each for each in seen if each.listens]
    chosen: list[Process] = []
    below: set[Process] = set()  # those under one that was chosen
    for each in seen:
        if each.above in below:
            below.add(each)
        elif each.listens or (each.catches and not each.spared and not each.over):
            chosen.append(each)
            below.add(each)
    return chosen


def outlived(signum: int, waited_s: float) -> str:
    return f"it had not ended {waited_s:.3g} s after {name(signum)}, when its grace was over, and was killed"


def unseen(waited_s: float) -> str:
    """Of a run whose processes could not be looked at, so that it is not known which of them a signal would harm."""
    return f"its processes could not be looked at, so it was not asked to end, and was killed after {waited_s:.3g} s"


def unsaved(signum: int) -> str:
    """Of those who were to save, and did not know how."""
    return f"nothing of it had a handler for {name(signum)}, so it ended without saving"


def name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
