"""The shim's side of a terminal: it holds the pty's master, copies output to the log, and serves those who attach.

A thread beside the shim's main one, only in attempts that asked for a terminal. Clients connect to the socket `tty`
in the attempt's directory. To them flows the raw output, beginning with the newest part of the log; from them come
frames: a letter, two bytes of length, a payload. `d` is typed text, `w` a window size (rows, columns). A client that
does not read is dropped. Whatever is done with the master, its close too, is done in that thread: a process outside the
attempt that has the other end can hold locks for which it waits without end.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios

from rota.adapters.backends import aside
from rota.adapters.backends.logfile import LogFile
from rota.adapters.files import open_regular

MAX_CLIENTS = 4
MAX_OWED = 1 << 18  # bytes a client may lag behind
MAX_TYPED = 1 << 16  # bytes the command has not read yet
REPLAY = 1 << 13
CHUNK = 1 << 16
# A process outside the attempt may have the terminal's other end and write for ever: at the end only what can have been
# written before, of which the kernel keeps far less than this.
LAST_CHUNKS = 32
SOCKET = "tty"


class Client:
    def __init__(self, connection: socket.socket, owed: bytes) -> None:
        self.connection, self.owed, self.frames = connection, owed, b""


class PtyPump:
    def __init__(self, master: int, log: LogFile, directory: str) -> None:
        self._master, self._log, self._directory = master, log, directory
        self._typed = b""
        self._hung_up = False
        self._clients: dict[int, Client] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._enough, self._finish = os.pipe()
        self._ended, self._closed = aside.gate(), aside.gate()
        self.started = False
        try:
            self._listen()
            os.set_blocking(master, False)
        except OSError:  # the supervisor goes on to other attempts
            self._server.close()
            os.close(self._enough)
            os.close(self._finish)
            raise

    def start(self) -> None:
        """Begin to copy and to serve. Call it when all tasks are forked."""
        aside.start(self._run)
        self.started = True

    def finish(self) -> None:
        """Have what is left of the output copied, and nobody else let in. No task lives any more."""
        os.unlink(f"{self._directory}/{SOCKET}")
        os.close(self._finish)
        if not self.started:  # no task was let go, so nothing was printed
            self._ended.release()

    def is_over(self, within_s: float) -> bool:
        """Wait for that."""
        return self._ended.acquire(timeout=within_s)

    def is_closed(self, within_s: float) -> bool:
        """Wait for the close of the master, which comes after that. Only where it was started."""
        return self._closed.acquire(timeout=within_s)

    def _listen(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # through the descriptor: the path itself may be longer than a socket's address can be
            self._server.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        finally:
            os.close(directory)
        self._server.listen(MAX_CLIENTS)
        self._server.setblocking(False)

    def _run(self) -> None:
        try:
            self._serve_all()
        finally:  # also after what nobody foresaw: the main thread waits for both, and else would never record the end
            self._ended.release()
            try:
                os.close(self._master)
            finally:
                self._closed.release()

    def _serve_all(self) -> None:
        over = False
        while not over:
            ready = self._poll()
            over = self._enough in ready
            if self._master in ready or over:
                for _ in range(LAST_CHUNKS):
                    if not self._copy_output() or not over:
                        break
            if self._server.fileno() in ready:
                self._accept()
            if self._typed:
                self._type()
            for fd in list(self._clients):
                if fd in ready or over:
                    self._serve(self._clients[fd])
        self._log.say_lost()
        for client in list(self._clients.values()):
            client.connection.close()
        self._server.close()
        os.close(self._enough)

    def _poll(self) -> set[int]:
        poll = select.poll()
        poll.register(self._enough, select.POLLIN)
        poll.register(self._server.fileno(), select.POLLIN)
        if not self._hung_up:
            poll.register(self._master, select.POLLIN | (select.POLLOUT if self._typed else 0))
        for fd, client in self._clients.items():
            wanted = select.POLLIN if len(self._typed) < MAX_TYPED else 0
            poll.register(fd, wanted | (select.POLLOUT if client.owed else 0))
        ready = dict(poll.poll())
        if len(self._typed) >= MAX_TYPED:
            # One that has hung up is ready without end, and what it typed cannot be taken until the command reads.
            for fd in [fd for fd in self._clients if ready.get(fd, 0) & (select.POLLHUP | select.POLLERR)]:
                self._drop(self._clients[fd])
        return set(ready)

    def _copy_output(self) -> bool:
        try:
            output = os.read(self._master, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody holds the other end any more
            self._hung_up = True
            return False
        self._log.write(output)  # those who watch see also what the disk has no room for
        for client in list(self._clients.values()):
            client.owed += output
            if len(client.owed) > MAX_OWED:
                self._drop(client)
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        if len(self._clients) >= MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection.fileno()] = Client(connection, self._newest())

    def _newest(self) -> bytes:
        try:
            log = open_regular(f"{self._directory}/log")
        except OSError:
            return b""  # a client sees what comes from now on
        try:
            return os.pread(log, REPLAY, max(0, os.fstat(log).st_size - REPLAY))
        finally:
            os.close(log)

    def _serve(self, client: Client) -> None:
        """First hear, then speak: the last words of one who has hung up still count."""
        try:
            if len(self._typed) < MAX_TYPED and not self._listen_to(client):
                self._drop(client)
                return
            if client.owed:
                client.owed = client.owed[client.connection.send(client.owed) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _listen_to(self, client: Client) -> bool:
        try:
            received = client.connection.recv(CHUNK)
        except BlockingIOError:
            return True
        self._obey(client, received)
        return bool(received)

    def _obey(self, client: Client, received: bytes) -> None:
        client.frames += received
        while len(client.frames) >= 3:
            length = 3 + int.from_bytes(client.frames[1:3], "big")
            if len(client.frames) < length:
                return
            kind, payload = client.frames[:1], client.frames[3:length]
            client.frames = client.frames[length:]
            if kind == b"d":
                self._typed += payload
            elif kind == b"w" and len(payload) == 4:
                rows, columns = struct.unpack("!HH", payload)
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _type(self) -> None:
        try:
            self._typed = self._typed[os.write(self._master, self._typed) :]
        except BlockingIOError:
            pass
        except OSError:
            self._typed = b""  # nobody reads it any more

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        client.connection.close()
