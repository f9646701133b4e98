"""Call functions that look at processes, for the server. Run as `python -I -S looker.py FD`.

Whoever looks at a process of another account can be made to wait in the kernel by it, so that not even SIGKILL ends the
wait. So the server has others look that have nothing else open (see lookers). Each request on the socket FD is a
function and its arguments, each answer what it returned or the exception that it raised, pickled, after eight bytes of
length; both ends are Rota's own.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # run by path
    sys.path[:0] = [os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3))]

HEAD = 8
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


def main(fd: int) -> None:
    with socket.socket(fileno=fd) as link:
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
