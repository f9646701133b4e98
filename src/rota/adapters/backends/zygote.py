"""The zygote: a tiny Python process that keeps a few warm workers and hands each order to one. Run as `python -I -S
zygote.py FD`.

It reads frames from the server on its socket: four bytes of length, then `<attempt id>\\n`, then the order as JSON.
The first frame, with an empty id, is the set-up. It answers with a line `<attempt id>` when a worker is through with
an order; for a worker that died, only after whatever it left behind is dead. It goes when the server goes (end of
file); shims and jobs live on.

No site-packages, no `typing`: every page it touches is a page each fork copies.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time

if __name__ == "__main__":  # run by path: make `rota` importable without running any package's __init__
    _here = os.path.dirname(os.path.abspath(__file__))
    for _depth, _name in enumerate(("rota.adapters.backends", "rota.adapters", "rota")):
        _module = type(sys)(_name)
        _module.__path__ = [os.path.normpath(os.path.join(_here, *[".."] * _depth))]
        sys.modules[_name] = _module

from rota.adapters.backends import confine, limits, procs, shim, task, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3
CLOSED = -1  # instead of a descriptor
MAX_FRAME = 8 << 20
MAX_UNSENT = 1 << 20
READ_SIZE = 1 << 18
ORPHANS_S = 2.0  # for what a dead shim left behind to be gone; then the server is told all the same
LOOK_S, LOOK_MOST_S = 0.001, 0.05  # between two looks at it
MAX_REMAINS = 256  # dead shims whose attempts are cleared up after at one time
RETIRE_S = 0.5
REAP_MOST = shim.REAP_MOST
SPARE, MAX_IDLE = 2, 32  # idle workers: that have carried nothing, and in all
LAZY_MS, LAZY_BYTES = 500, 4096
ENFORCED = "!"  # begins the line that names the controllers of limits that work here


class Worker:
    """A child of ours: idle while it has no attempt."""

    def __init__(self, orders: int, groups: limits.WorkerGroups) -> None:
        self.orders, self.groups, self.attempt = orders, groups, ""
        self.account: str | None = None  # whose attempts it carries; None = it has carried none

    def dismiss(self) -> None:
        """Close its pipe: at the end of file it retires. Once only: by then the number may be another worker's pipe."""
        orders, self.orders = self.orders, CLOSED
        if orders != CLOSED:
            os.close(orders)


class Remains:
    """What a dead shim left behind, until nothing of it is left."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.deadline = time.monotonic() + ORPHANS_S


class Zygote:
    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}
        self._idle: list[int] = []  # the last one to become idle is the warmest, and the first to be used
        self._born, self._name = 0, os.urandom(6).hex()  # a group's name is used once: a pid would come back
        self._inbox = bytearray()
        self._outbox = b""
        self._urgent = False
        self._no_spares_until = 0.0
        self._unreaped = False  # more dead children than one round collects
        self._remains: list[Remains] = []
        # Opened once: others can hold the lock of /proc/self/task. No kernel without CONFIG_PROC_CHILDREN has it.
        children = "/proc/thread-self/children"
        self._children = os.open(children, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(children) else CLOSED
        self._look_at, self._look_pause = 0.0, LOOK_S  # when, by the monotonic clock, and how often
        self._partial = b""
        self._house: shim.House | None = None
        self._answers, self._answer = os.pipe()
        self._wakeup, wakeup = os.pipe()
        for fd in (self._answers, self._wakeup, wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noop)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(self._answers, select.POLLIN)
        poll.register(CONTROL, select.POLLIN)
        while True:
            ready = dict(poll.poll(self._pause_ms()))
            if self._answers in ready:
                self._hear()
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            if self._wakeup in ready or self._unreaped:
                self._reap()
            if CONTROL in ready and not self._receive():
                self._retire()
                return
            if self._remains and time.monotonic() >= self._look_at:
                self._look_again()
            if self._outbox and (self._urgent or not ready):
                self._flush()
            self._balance()

    def _pause_ms(self) -> int | None:
        if self._unreaped:
            return 0
        if self._remains:
            return max(1, int(1000 * (self._look_at - time.monotonic())))
        return LAZY_MS if self._outbox or self._needs_spare() else None

    def _receive(self) -> bool:
        try:
            chunk = os.read(CONTROL, READ_SIZE)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not chunk:
            return False
        self._inbox += chunk
        while len(self._inbox) >= 4:
            length = 4 + int.from_bytes(self._inbox[:4], "big")
            if length > MAX_FRAME:
                raise ValueError(f"frame of {length} bytes")
            if len(self._inbox) < length:
                break
            frame = bytes(self._inbox[:length])
            del self._inbox[:length]
            self._obey(frame)
        return True

    def _obey(self, frame: bytes) -> None:
        end = frame.index(b"\n", 4)  # after the length, whose bytes may be anything
        name, _, account = frame[4:end].decode("ascii").partition(" ")
        if not name:
            self._house = _set_up(json.loads(frame[end:]))
            self._outbox += f"{ENFORCED}{','.join(self._house.bounds.found.limits)}\n".encode()
            self._urgent = True
            return
        pid = self._take(account)
        self._workers[pid].attempt = name
        try:
            while frame:
                frame = frame[os.write(self._workers[pid].orders, frame) :]
        except BrokenPipeError:
            pass  # it died idle: its reaping tells the server, who sends the order again

    def _take(self, account: str) -> int:
        """Return an idle worker that has carried attempts of this account alone: what one leaves behind in memory
        counts in the groups of its worker, also what nobody can see there when it ends."""
        able = [pid for wanted in (None, account) for pid in self._idle if self._workers[pid].account == wanted]
        if not able:
            self._fork()
        pid = able[-1] if able else self._idle[-1]
        self._idle.remove(pid)
        self._workers[pid].account = account
        return pid

    def _balance(self) -> None:
        """Keep a spare or two ready for any account, and no more idle ones than a burst leaves behind."""
        while self._house is not None and self._needs_spare() and time.monotonic() >= self._no_spares_until:
            self._fork()
        while len(self._idle) > MAX_IDLE:
            used = (pid for pid in self._idle if self._workers[pid].account is not None)
            pid = next(used, self._idle[0])
            self._idle.remove(pid)
            self._workers[pid].dismiss()

    def _needs_spare(self) -> bool:
        return sum(self._workers[pid].account is None for pid in self._idle) < SPARE

    def _fork(self) -> None:
        orders, ours = os.pipe()
        assert self._house is not None, "the first frame is the set-up"
        self._born += 1
        name = f"{self._name}.{self._born}"
        pid = os.fork()
        if pid == 0:
            self._become_worker(orders, ours, name)
        os.close(orders)
        self._workers[pid] = Worker(ours, limits.WorkerGroups(self._house.bounds.found, name))
        self._idle.append(pid)

    def _become_worker(self, orders: int, ours: int, name: str) -> None:
        status = 1
        try:
            for fd in (CONTROL, ours):
                os.close(fd)  # or others would not see the zygote's death: the server, and our siblings
            for each in self._workers.values():
                each.dismiss()
            assert self._house is not None
            status = worker.serve(self._house, name, orders, self._answer)
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's loop
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _hear(self) -> None:
        *lines, self._partial = (self._partial + os.read(self._answers, 1 << 16)).split(b"\n")
        for line in lines:
            pid, _, answer = line.decode("ascii").partition(" ")
            each = self._workers.get(int(pid))
            if each is None:
                continue  # reaped, and told, already
            self._tell(each.attempt, urgent=answer == worker.NOT_MINE)
            each.attempt = ""
            if answer != worker.RETIRES:
                self._idle.append(int(pid))

    def _reap(self) -> None:
        self._unreaped = False
        for _ in range(REAP_MOST):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            each = self._workers.pop(pid, None)
            if each is None:
                continue  # an orphan, killed below
            if pid in self._idle:
                self._idle.remove(pid)
            each.dismiss()
            if each.attempt:
                self._clear_up_after(each)
            elif status != 0:  # could not even get ready (a full disk?): no storm of forks
                self._no_spares_until = time.monotonic() + 1.0
        self._unreaped = True

    def _clear_up_after(self, dead: Worker) -> None:
        """Kill what a dead shim left behind. We are a subreaper: it is our child now, and every other child of ours
        is a worker. Whatever does not die at once, as it is traced or in the kernel, is looked at again from the loop:
        launches must not wait for it."""
        is_clear = _is_clear(dead, self._kill_orphans())
        if is_clear or len(self._remains) >= MAX_REMAINS:  # beyond that the server's own sweep goes on
            self._tell(dead.attempt, urgent=True)
            return
        self._remains.append(Remains(dead))
        self._look_pause, self._look_at = LOOK_S, time.monotonic() + LOOK_S

    def _look_again(self) -> None:
        """Kill again what dead shims left behind, and tell the server of those of whom nothing is left. When the bound
        has passed, tell it all the same: its own sweep goes on, and can end what traces them."""
        begun = time.monotonic()
        orphans = self._kill_orphans()
        for each in self._remains[:]:
            if _is_clear(each.worker, orphans) or begun > each.deadline:
                self._remains.remove(each)
                self._tell(each.worker.attempt, urgent=True)
        now = time.monotonic()
        self._look_pause = min(self._look_pause * 2, LOOK_MOST_S)
        self._look_at = now + max(self._look_pause, 4 * (now - begun))  # most of the time is for launches

    def _kill_orphans(self) -> list[int]:
        """Signal those of our children that are no workers, and return them.

        Only direct children are signalled: not reaped yet, their numbers cannot have been given to strangers. Their own
        children fall to us when they die, and the next round finds them."""
        children = procs.children(os.getpid()) if self._children == CLOSED else procs.listed_in(self._children)
        orphans = [pid for pid in children if pid not in self._workers]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        return orphans

    def _retire(self) -> None:
        """The server is gone. Idle workers follow; those with an attempt stay, and their groups with them."""
        for each in self._workers.values():
            each.dismiss()
        deadline = time.monotonic() + RETIRE_S
        for pid in self._idle:
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.001)
        for base in self._house.bounds.found.bases() if self._house is not None else ():
            confine.clear(base)
            confine.try_remove_base(base)

    def _tell(self, attempt_id: str, *, urgent: bool) -> None:
        """Lazily when all went well: then the server has been nudged, and this is only for the nudge that got lost."""
        if len(self._outbox) < MAX_UNSENT:
            self._outbox += f"{attempt_id}\n".encode()
        self._urgent = self._urgent or urgent or len(self._outbox) > LAZY_BYTES

    def _flush(self) -> None:
        try:
            self._outbox = self._outbox[os.write(CONTROL, self._outbox) :]
        except BlockingIOError:
            pass  # the server is slow; poll comes back after LAZY_MS
        except ConnectionError:
            self._outbox = b""  # the server is gone; the next read says so too
        self._urgent = False


def _is_clear(dead: Worker, orphans: list[int]) -> bool:
    """Return whether nothing is left of the attempt of a dead worker; what is in its cgroup is killed by the way. An
    orphan may be of any attempt."""
    if (dead.groups.unified and not confine.remove(dead.groups.unified, 0.0)) or orphans:
        return False
    for group in dead.groups.names():
        confine.discard(group)
    return True


def _set_up(settings: dict[str, Any]) -> shim.House:
    # First, as it fails when the server is gone: no group may be left behind then.
    nudge = os.open("nudge", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = confine.probe(settings["cgroup_name"]) if settings["cgroups"] else confine.Hierarchies()
    for base in found.bases():
        confine.clear(base)
    if base := found.cpu_v1():
        confine.discard(base)
    bounds = limits.Bounds(found, settings["memory_bytes"], settings["processes"])
    try:
        for text in bounds.apply():
            print(f"limits: {text}", file=sys.stderr, flush=True)
    except OSError as error:  # no limits then, and the server says so; the kill by cgroup does not need them
        print(f"no limits: {error}", file=sys.stderr, flush=True)
        found.limits.clear()
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    deny = [(int(major), int(minor)) for major, minor in settings["deny"]]
    return shim.House(procs.boot_id(), nudge, null, bounds, deny, least_free=settings["least_free"])


def _noop(signum: int, frame: object) -> None:
    """A handler must exist for the wake-up descriptor to be written."""


def main() -> None:
    procs.LENIENT = True
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        try:
            signal.signal(signum, signal.SIG_DFL)  # whatever the server ignored, jobs shall not
        except OSError:
            pass  # reserved by the C library
    given = int(sys.argv[1])
    if given != CONTROL:
        os.dup2(given, CONTROL)
        os.close(given)
    os.set_inheritable(CONTROL, False)
    os.set_blocking(CONTROL, False)
    task.libc.prctl(worker.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    task.libc.prctl(worker.PR_SET_NAME, b"rota-zygote", 0, 0, 0)
    zygote = Zygote()
    gc.disable()
    gc.freeze()
    zygote.serve()


if __name__ == "__main__":
    main()
