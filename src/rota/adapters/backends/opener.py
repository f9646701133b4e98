"""Open a directory for the server, made if it is not there. Run as `python -I -S opener.py FD MAKE PATH`.

To look up a name may wait for the lock of the directory above, for as long as an account likes that can search that,
and whoever waits cannot be ended. So a process does it that has nothing else open. What it opened goes over the socket
FD; without an answer it could not be opened.
"""

# ruff: noqa: SIM105 - contextlib would be one more import

from __future__ import annotations

import os
import socket
import sys


def main(fd: int, make: bool, path: str) -> None:
    with socket.socket(fileno=fd) as link:
        if make and not os.path.lexists(path):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
        opened = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        socket.send_fds(link, [b"."], [opened])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3])
