"""The server's end of the zygote: start it, hand it orders without ever blocking, hear which shims ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rota.adapters.backends import procs, zygote
from rota.app.ports import LaunchOrder

MAX_LOG_BYTES = 1 << 20
MAX_QUEUED_BYTES = 64 << 20


class Overloaded(Exception):
    """More orders wait for the zygote than a healthy server can have."""


class Launcher:
    def __init__(
        self,
        root: Path,
        *,
        cgroups: bool,
        deny: Sequence[tuple[int, int]],
        prefix: Sequence[str] = (),
        processes: int | None = None,
        memory_bytes: int | None = None,
        least_free: int = 0,
    ) -> None:
        self._root = root
        self._prefix = list(prefix)  # tests run the zygote under strace
        self.group_name = f"rota-{zlib.crc32(os.fsencode(root)):08x}"
        self.enforced: frozenset[str] | None = None  # controllers of limits that work; None = not said yet
        settings = {
            "cgroups": cgroups,
            "cgroup_name": self.group_name,
            "deny": [list(device) for device in deny],
            "processes": processes,
            "memory_bytes": memory_bytes,
            "least_free": least_free,
        }
        self._set_up = frame("", settings)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = bytearray()
        self._heard = b""
        self._descriptors = resource.getrlimit(
            resource.RLIMIT_NOFILE
        )  # what jobs get, whatever the server gives itself

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, signum: int, pids: Iterable[int]) -> None:
        """Signal these of the zygote and its workers. The zygote's number is its own until it is waited for."""
        for pid in pids:
            process = self._process
            if process is not None and pid == process.pid:
                process.send_signal(signum)
            elif process is not None:
                procs.send(pid, signum, lambda pid=pid, above=process.pid: procs.parent(pid) == above)  # type: ignore[misc]

    def start(self) -> int:
        """A new zygote; returns the descriptor to watch. Orders queued for the last one are gone: whoever sent them
        knows."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._spawn(theirs)
        except BaseException:
            ours.close()
            raise
        with contextlib.suppress(ProcessLookupError):  # it died at once: the watcher will see
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, self._descriptors)
        ours.setblocking(False)
        with self._lock:
            self._socket, self._unsent, self._heard = ours, bytearray(), b""
        self.queue(self._set_up)
        self.flush()
        return ours.fileno()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        argv = [*self._prefix, sys.executable, "-I", "-S", "-X", "utf8", zygote.__file__, str(theirs.fileno())]
        errors = os.open(self._root / "zygote.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        if os.fstat(errors).st_size > MAX_LOG_BYTES:
            os.ftruncate(errors, 0)
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=self._root,
                env={},  # jobs get theirs in the order; nothing of the server's is to be read in /proc
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C at the server's terminal is not meant for jobs
            )
        finally:
            os.close(errors)

    def queue(self, order: bytes) -> None:
        """To be handed over by `flush`, with others: each send wakes the zygote. Nobody there is not an error: the
        order is sent again to the next."""
        with self._lock:
            if self._socket is None:
                return
            if len(self._unsent) + len(order) > MAX_QUEUED_BYTES:
                raise Overloaded(f"{len(self._unsent)} bytes of orders wait for the launcher")
            self._unsent += order

    def flush(self) -> None:
        """Hand over what the socket takes; the rest when there is room."""
        with self._lock:
            self._flush()

    @property
    def behind(self) -> bool:
        return bool(self._unsent)

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass  # the watcher flushes when there is room
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOBUFS):  # else as above
                self._unsent.clear()  # it died: the watcher reads that as end of file

    def receive(self) -> list[str] | None:
        """Attempts whose shims ended since last asked; None when the zygote itself is gone."""
        assert self._socket is not None
        try:
            chunk = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not chunk:
            return None
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        words = [line.partition(b" ")[0].decode("ascii", "replace") for line in lines]
        for word in words:
            if word.startswith(zygote.ENFORCED):
                self.enforced = frozenset(filter(None, word.removeprefix(zygote.ENFORCED).split(",")))
        return [word for word in words if not word.startswith(zygote.ENFORCED)]

    def stop(self) -> None:
        """Close the line: the zygote leaves by itself, its shims live on."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


def frame(head: str, body: object) -> bytes:
    """Head: which attempt, and the account that it has; empty for the set-up."""
    content = f"{head}\n{json.dumps(body)}".encode("ascii")
    return len(content).to_bytes(4, "big") + content


def order_frame(order: LaunchOrder, installation: str = "", subuids: procs.Ranges = ()) -> bytes:
    tasks = [{"minors": task.minors, "env": dict(task.env)} for task in order.tasks]
    body = {
        "id": order.attempt_id,
        "installation": installation,
        "argv": order.argv,
        "env": dict(order.env),
        "workdir": order.workdir,
        "tasks": tasks,
        "umask": order.umask,
        "account": order.account,
        "subuids": subuids,
        "time_limit_s": order.time_limit_s,
        "warn_signal": order.warn_signal,
        "warn_s": order.warn_s,
        "grace_s": order.grace_s,
        "log_cap_bytes": order.log_cap_bytes,
        "terminal": order.terminal,
        "confine": order.confine,
        "checkpoint_dir": order.checkpoint_dir,
        "checkpoint_parent": order.checkpoint_parent,
        "memory_gb": order.memory_gb,
        "cpus": order.cpus,
    }
    return frame(f"{order.attempt_id} {(order.account or '').encode(errors='surrogateescape').hex()}", body)
