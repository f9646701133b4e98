"""Descriptors that a client passes over a unix socket (SCM_RIGHTS), which nobody here wants.

A plain recv() drops them: the kernel then closes, inside that call, what may be the last descriptor of a file. To close
a TCP socket with SO_LINGER and unsent bytes takes as long as its owner said, and the event loop waits meanwhile.
"""

from __future__ import annotations

import logging
import socket

log = logging.getLogger(__name__)

SO_PASSRIGHTS = 83  # asm-generic/socket.h, since Linux 6.16; the socket module does not know it yet


def refuse_descriptors(listener: socket.socket) -> None:
    """Have the kernel refuse messages with descriptors, to this socket and to those that it accepts (EPERM)."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError as error:  # an older kernel: docs/security.md says what that leaves open
        log.info("descriptors that clients pass over the unix socket cannot be refused here: %s", error)
