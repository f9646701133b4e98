"""Look into a running attempt that has a terminal: `python -m rota.adapters.backends.terminal ROOT ATTEMPT`.

The terminal belongs to the attempt's shim, so attaching, detaching (Ctrl-]) or losing the connection changes nothing
for it. The same goes for tmux: a window of it is one more onlooker, never what keeps a job alive.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import tty
from pathlib import Path

from rota.adapters.backends import records
from rota.core.ids import is_attempt_id

DETACH = b"\x1d"  # Ctrl-]
CHUNK = 1 << 12


class NoTerminal(Exception):
    """The attempt is over, not here, or was started without a terminal."""


def connect(root: Path, attempt_id: str) -> socket.socket:
    if not is_attempt_id(attempt_id):
        raise ValueError(f"not an attempt id: {attempt_id!r}")
    line = socket.socket(socket.AF_UNIX)
    try:
        directory = os.open(records.attempt_dir(str(root), attempt_id), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            line.connect(f"/proc/self/fd/{directory}/tty")
        finally:
            os.close(directory)
    except OSError as error:
        line.close()
        raise NoTerminal(f"{attempt_id} has no terminal to attach to: {error.strerror}") from None
    return line


def typed(text: bytes) -> bytes:
    return b"d" + len(text).to_bytes(2, "big") + text


def window_size(rows: int, columns: int) -> bytes:
    return b"w" + (4).to_bytes(2, "big") + struct.pack("!HH", rows, columns)


def attach(root: Path, attempt_id: str, stdin: int = 0, stdout: int = 1) -> str:
    """Join keyboard and screen to the attempt until Ctrl-] ("detached") or its end ("ended")."""
    with connect(root, attempt_id) as line:
        if not os.isatty(stdin):
            return _converse(line, stdin, stdout)
        before = termios.tcgetattr(stdin)
        handler = signal.signal(signal.SIGWINCH, lambda signum, frame: _send_size(line, stdin))
        try:
            tty.setraw(stdin)
            _send_size(line, stdin)
            return _converse(line, stdin, stdout)
        finally:
            signal.signal(signal.SIGWINCH, handler)
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def tmux_window(root: Path, attempt_id: str, session: str | None = None, socket_name: str | None = None) -> None:
    """A tmux window that looks into the attempt, in the current session or in `session`, which is made where there is
    none of that name."""
    program = shutil.which("tmux")
    if program is None:
        raise NoTerminal("tmux is not installed")
    tmux = [program, *(["-L", socket_name] if socket_name else [])]
    # -P: the window begins in the directory of whoever calls, which may be another's and hold a module `rota`
    look = ["-n", attempt_id, sys.executable, "-P", "-m", "rota.adapters.backends.terminal", str(root), attempt_id]
    if session is None:
        _run_tmux([*tmux, "new-window", "-d", *look])
        return
    try:
        _run_tmux([*tmux, "has-session", "-t", f"={session}"])  # = : not one whose name only begins so
    except NoTerminal:
        _run_tmux([*tmux, "new-session", "-d", "-s", session, *look])
    else:
        _run_tmux([*tmux, "new-window", "-d", "-t", f"={session}:", *look])


def _run_tmux(argv: list[str]) -> None:
    done = subprocess.run(argv, check=False, timeout=10, capture_output=True)
    if done.returncode != 0:
        raise NoTerminal(f"tmux: {done.stderr.decode(errors='replace').strip() or 'it failed'}")


def _send_size(line: socket.socket, fd: int) -> None:
    size = os.get_terminal_size(fd)
    line.sendall(window_size(size.lines, size.columns))


def _converse(line: socket.socket, stdin: int, stdout: int) -> str:
    sources = [line.fileno(), stdin]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if line.fileno() in ready:
            try:
                output = line.recv(CHUNK)
            except ConnectionError:
                output = b""
            if not output:
                return "ended"
            _write_all(stdout, output)
        if stdin in ready:
            text = os.read(stdin, CHUNK)
            before, detach, _ = text.partition(DETACH)
            if before:
                line.sendall(typed(before))
            if detach:
                return "detached"
            if not text:
                sources.remove(stdin)  # a script that has said all it had to say still listens


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


if __name__ == "__main__":
    try:
        print(f"\r\n[{attach(Path(sys.argv[1]), sys.argv[2])}]")
    except NoTerminal as error:
        sys.exit(str(error))
