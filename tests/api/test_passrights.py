"""Whoever may connect to the unix socket must not hand the server descriptors to close."""

from __future__ import annotations

import array
import logging
import os
import socket
from pathlib import Path

import pytest

from rota.api.passrights import SO_PASSRIGHTS, refuse_descriptors
from rota.api.serve import listen, listen_unix


def is_refused(listener: socket.socket, path: Path) -> bool:
    """Pass a descriptor before and after the connection is accepted; say whether both are refused."""
    told = []
    with socket.socket(socket.AF_UNIX) as caller, open(os.devnull, "rb") as passed:
        caller.connect(str(path))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()]))]
        for accepts in (False, True):
            link = listener.accept()[0] if accepts else None
            try:
                caller.sendmsg([b"x"], rights)
                told.append(False)
            except PermissionError:
                told.append(True)
            if link is not None:
                link.close()
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("given", [False, True])
def test_a_message_with_a_descriptor_is_refused_where_the_kernel_can(tmp_path: Path, given: bool) -> None:
    path = tmp_path / "s"
    if given:  # as systemd passes one on
        one: socket.socket | None = socket.socket(socket.AF_UNIX)
        assert one is not None
        one.bind(str(path))
        one.listen()
        sockets = listen("127.0.0.1", 0, 0, {"unix": one})
        sockets.main.close()
    else:
        one = listen_unix(path)
    assert one is not None
    with one:
        try:
            able = one.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 0
        except OSError:  # before Linux 6.16
            able = False
        assert is_refused(one, path) == able


def test_a_kernel_that_cannot_is_said_and_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as one, caplog.at_level(logging.INFO):
        one.close()
        refuse_descriptors(one)
    assert "cannot be refused here" in caplog.text
