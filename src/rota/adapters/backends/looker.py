"""Call functions that look at processes, for the server. Run as `python -I -S looker.py FD`.

Whoever looks at a process of another account can be made to wait in the kernel by it, so that not even SIGKILL ends the
wait. So the server has others look that have nothing else open (see lookers). Where the server is root these have a
/proc of their own as well, whose directories nobody else can lock. Each request on the socket FD is a function and its
arguments, each answer what it returned or the exception that it raised, pickled, after eight bytes of length; both ends
are Rota's own. The first message says that it is ready, or why it cannot be.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

if __name__ == "__main__":  # run by path
    sys.path[:0] = [os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3))]

CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 19
HEAD = 8
LOOKS = [f"rota.adapters.backends.{name}" for name in ("supervisors", "evict", "sight")]  # what most requests name
MAX_FRAME = 64 << 20  # the processes of a lease, and twice their number


def send(link: socket.socket, message: Any) -> None:
    content = pickle.dumps(message)
    link.sendall(len(content).to_bytes(HEAD, "big") + content)


def receive(read: Callable[[int], bytes]) -> Any:
    """Read a message. Raises EOFError at the end of the file."""
    size = int.from_bytes(_whole(read, HEAD), "big")
    if size > MAX_FRAME:
        raise EOFError(f"a frame of {size} bytes")
    return pickle.loads(_whole(read, size))  # noqa: S301 - the other end is a process of ours, which no account can write to


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = read(min(size - len(parts), 1 << 20))
        if not chunk:
            raise EOFError("the other end is closed")
        parts += chunk
    return bytes(parts)


def mount_proc() -> bool:
    """Mount a /proc that this process alone sees. False: it may not, as it is not root's, or in a container, or it
    would keep mounted what is unmounted elsewhere. Before Linux 5.8 it is the same one."""
    libc = ctypes.CDLL(None)
    if (
        not hears_of_mounts()
        or libc.unshare(CLONE_NEWNS) != 0
        or libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) != 0
    ):
        return False  # a slave hears of mounts that are removed elsewhere, and tells of none
    return bool(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None) == 0)


def hears_of_mounts() -> bool:
    """Whether a copy of our mounts would lose those that are unmounted: where they are shared, as systemd has them."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        lines = [line.split(" ") for line in file]
    # number, parent, device, root, mount point, options, tags ..., "-", ...
    tags = [tag for line in lines if line[4] == "/" for tag in line[6 : line.index("-")]]
    return any(tag.startswith(("shared:", "master:")) for tag in tags)


def main(fd: int) -> None:
    with socket.socket(fileno=fd) as link:
        link.set_inheritable(False)
        try:
            mount_proc()
            for name in LOOKS:
                import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told where the first answer is waited for
            send(link, f"it cannot start: {error!r}")
            return
        send(link, "")
        while True:
            try:
                function, args = receive(link.recv)
            except (EOFError, OSError):  # the server is gone
                return
            try:
                answer = (True, function(*args))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the answer is waited for
                answer = (False, error)
            try:
                send(link, answer)
            except OSError:
                return


if __name__ == "__main__":
    main(int(sys.argv[1]))
