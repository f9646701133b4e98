"""A process that has imported Rota and forks a server for each order on stdin: it is then up in milliseconds.

An order is one JSON line {"script": name, "args": {...}}; the answer is the child's pid, and later `[pid, status]` when
it has ended. Scripts are the functions of tests.crash.scripts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

from tests.crash import scripts


def main() -> None:
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    import select

    buffer = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                _fork(json.loads(line))


def _fork(order: dict) -> None:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        status = 1
        try:
            getattr(scripts, order["script"])(**order["args"])
            status = 0
        except BaseException:  # noqa: BLE001 - the child ends here; whatever it was is printed and told by its status
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(json.dumps(pid), flush=True)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(json.dumps([pid, os.waitstatus_to_exitcode(status)]), flush=True)


if __name__ == "__main__":
    main()
