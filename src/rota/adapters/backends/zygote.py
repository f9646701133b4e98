"""The zygote: a tiny Python process that forks a shim per order in half a millisecond. Run as `python -I -S zygote.py`.

It reads frames from the server on descriptor 3: four bytes of length, then `<attempt id>\\n`, then the order as JSON. The first
frame, with an empty id, is the set-up. It answers with a line `<attempt id> <wait status>` for each shim that ended, sent only after
whatever that shim left behind is dead. It goes when the server goes (end of file); shims and jobs live on.

No site-packages, no `typing`, no `re` beyond what json needs: every page it touches is a page each fork copies.
"""

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

from rota.adapters.backends import confine, procs, shim, task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3
MAX_FRAME = 8 << 20
MAX_UNSENT = 1 << 20
READ_SIZE = 1 << 18
ORPHANS_S = 2.0


class Zygote:
    def __init__(self) -> None:
        self._shims: dict[int, str] = {}  # pid -> attempt id
        self._inbox = bytearray()
        self._outbox = b""
        self._house: shim.House | None = None
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noop)
        self._wake_end = wakeup

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        while True:
            poll.register(CONTROL, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            ready = dict(poll.poll())
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if ready.get(CONTROL, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._receive():
                return
            if self._outbox:
                self._flush()

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
            length = int.from_bytes(self._inbox[:4], "big")
            if length > MAX_FRAME:
                raise ValueError(f"frame of {length} bytes")
            if len(self._inbox) < 4 + length:
                break
            frame = bytes(self._inbox[4 : 4 + length])
            del self._inbox[: 4 + length]
            self._obey(frame)
        return True

    def _obey(self, frame: bytes) -> None:
        name, _, body = frame.partition(b"\n")
        if not name:
            self._house = _set_up(json.loads(body))
            return
        pid = os.fork()
        if pid == 0:
            self._become_shim(name.decode("ascii"), body)
        self._shims[pid] = name.decode("ascii")

    def _become_shim(self, attempt_id: str, body: bytes) -> None:
        status = 1
        try:
            os.close(CONTROL)  # or the server would not see the zygote's death
            assert self._house is not None, "the first frame is the set-up"
            status = shim.main(self._house, attempt_id, json.loads(body))
        except BaseException:  # a forked child must never return into its parent's loop
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            attempt_id = self._shims.pop(pid, None)
            if attempt_id is None:
                continue  # an orphan, killed below
            if status != 0 and os.waitstatus_to_exitcode(status) != shim.NOT_MINE:
                self._kill_orphans()
            if len(self._outbox) < MAX_UNSENT:
                self._outbox += f"{attempt_id} {status}\n".encode()

    def _kill_orphans(self) -> None:
        """We are a subreaper: what a dead shim left behind is now our child, and every other child of ours is a shim.

        Only direct children are signalled: not reaped yet, their numbers cannot have been given to strangers. Their own
        children fall to us when they die, and the next round finds them.
        """
        deadline = time.monotonic() + ORPHANS_S
        while orphans := [pid for pid in procs.children(os.getpid()) if pid not in self._shims]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                while os.waitpid(pid, os.WNOHANG)[0] == 0:
                    if time.monotonic() > deadline:
                        return  # stuck in the kernel: the server's own sweep will wait for it, launches must not
                    time.sleep(0.0005)

    def _flush(self) -> None:
        try:
            self._outbox = self._outbox[os.write(CONTROL, self._outbox) :]
        except BlockingIOError:
            pass  # poll says when
        except ConnectionError:
            self._outbox = b""  # the server is gone; the next read says so too


def _set_up(settings: dict[str, Any]) -> shim.House:
    groups = confine.probe(settings["cgroup_name"]) if settings["cgroups"] else confine.Hierarchies()
    nudge = os.open("nudge", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    deny = [(int(major), int(minor)) for major, minor in settings["deny"]]
    return shim.House(procs.boot_id(), nudge, null, groups, deny)


def _noop(signum: int, frame: object) -> None:
    """A handler must exist for the wake-up descriptor to be written."""


def main() -> None:
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
    task.libc.prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    task.libc.prctl(shim.PR_SET_NAME, b"rota-zygote", 0, 0, 0)
    zygote = Zygote()
    gc.disable()
    gc.freeze()
    zygote.serve()


if __name__ == "__main__":
    main()
