"""The blocking client: sockets under the shared logic."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from rota.client import calls
from rota.client.address import Address, find_token, find_url
from rota.client.errors import RotaError, Unreachable
from rota.client.exchange import Call, Exchange, Steps
from rota.client.method import Described

if TYPE_CHECKING:
    from types import TracebackType

    from rota.client.model.run import Run

P = ParamSpec("P")
T = TypeVar("T")

READ = 256 * 1024
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5  # between two tries to get into a full accept queue


class Sockets:
    """`Io` with blocking sockets."""

    def __init__(self) -> None:
        self._tls: Any = None

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        try:
            if address.socket:
                return self._connect_unix(address.socket, timeout_s)
            link = self._connect_tcp(address, timeout_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._secured(link, address.host) if address.tls else link
        except (OSError, UnicodeError) as error:
            raise unreachable(address, error) from error

    def _connect_unix(self, path: str, timeout_s: float) -> socket.socket:
        waits = pauses(timeout_s)
        while True:
            try:
                return unix_link(path)
            except BlockingIOError:
                pause_s = next(waits, None)
                if pause_s is None:
                    raise
            self.sleep(pause_s)

    def _connect_tcp(self, address: Address, timeout_s: float) -> socket.socket:
        # as bytes: for a text Python loads the tables of all alphabets first
        *first, last = [host.encode("ascii") for host in address.hosts]
        for host in first:
            with suppress(OSError):
                return _tcp_link(host, address.port, timeout_s)
        return _tcp_link(last, address.port, timeout_s)

    def _secured(self, link: socket.socket, host: str) -> socket.socket:
        import ssl

        self._tls = self._tls or ssl.create_default_context()
        try:
            secured: socket.socket = self._tls.wrap_socket(link, server_hostname=host)
        except OSError:
            link.close()
            raise
        return secured

    def write(self, link: socket.socket, data: bytes, timeout_s: float) -> None:
        try:
            link.settimeout(timeout_s)
            link.sendall(data)
        except OSError as error:
            raise lost(error) from error

    def read(self, link: socket.socket, timeout_s: float) -> bytes:
        try:
            link.settimeout(timeout_s)
            return link.recv(READ)
        except OSError as error:
            raise lost(error) from error

    def socket_of(self, link: socket.socket) -> socket.socket:
        return link

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self, link: socket.socket) -> None:
        link.close()

    def fresh(self, link: socket.socket) -> bool:
        """Readable without having been asked: it was closed, or speaks out of turn."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        return link.fileno() >= 0 and not poll.poll(0)


def _tcp_link(host: Any, port: int, timeout_s: float) -> socket.socket:
    return socket.create_connection((host, port), timeout_s)


def unix_link(path: str) -> socket.socket:
    """Connect to a unix socket at once. BlockingIOError: its accept queue is full."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        link.connect(path)
    except BaseException:
        link.close()
        raise
    return link


def pauses(timeout_s: float) -> Iterator[float]:
    """Return how long to wait before each further try, until the time is over."""
    deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
    while (left_s := deadline - time.monotonic()) > 0:
        yield min(left_s, pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)


def unreachable(address: Address, error: Exception) -> Unreachable:
    why = "timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
    if isinstance(error, PermissionError) and address.socket:
        return Unreachable(f"{address} is not open to your account: {str(why)[:200].lower()}", denied=True)
    if isinstance(error, BlockingIOError) and address.socket:
        return Unreachable(f"the server at {address} is busy: too many connections wait to be taken", busy=True)
    return Unreachable(f"no server answers at {address}: {str(why)[:200].lower()}")


def lost(error: OSError) -> Unreachable:
    why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return Unreachable(f"the connection to the server was lost: {why}", sent=True)


def drive(steps: Steps[T]) -> T:
    """Run the shared logic to its end. Every act was done when it is yielded: it only has to be handed back."""
    outcome = None
    try:
        while True:
            outcome = steps.send(outcome)
    except StopIteration as stop:
        value: T = stop.value
        return value


def drive_items(script: Generator[Any, Any, None]) -> Iterator[Any]:
    """The same for a script with values for the caller."""
    from rota.client.scripts import Item

    outcome = None
    try:
        while True:
            outcome = script.send(outcome)
            if isinstance(outcome, Item):
                yield outcome.value
                outcome = None
    except StopIteration:
        return
    finally:
        script.close()


class Does(Described[P, T]):
    """A call as a method: `Client.queue` has the arguments of `calls.queue` and returns what its answer means."""

    def __call__(self, client: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return client.do(self.describe(*args, **named))

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: Client | None, owner: type) -> Callable[..., Any] | Callable[P, T]:
        return self.alone() if client is None else MethodType(self, client)


class Client:
    """A Rota server, from Python. Safe to share between threads.

    with Client.from_env() as rota:
        run = rota.submit(["python", "train.py"], gpus=2)
        for text in rota.follow(run.id):
            print(text, end="")
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        connect_s: float = 5.0,
        answer_s: float = 30.0,
        tries: int = 4,
        backoff_s: float = 0.1,
    ) -> None:
        from rota import __version__

        self.url = url
        self._talk = Exchange(
            Sockets(),
            Address(url),
            token,
            connect_s=connect_s,
            answer_s=answer_s,
            tries=tries,
            backoff_s=backoff_s,
            agent=f"rota/{__version__}",
        )

    @classmethod
    def from_env(cls, url: str = "", **options: Any) -> Client:
        """The server and the token of this environment; see `rota.client.address`."""
        return cls(url or find_url()[0], find_token()[0], **options)

    def do(self, call: Call[T]) -> T:
        return drive(self._talk.call(call))

    def do_with_headers(self, call: Call[T]) -> tuple[T, dict[str, str]]:
        """The answer, and the headers it came with, by lower-case name."""
        return drive(self._talk.call_with_headers(call))

    def close(self) -> None:
        self._talk.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def runs(self, **filters: Any) -> Iterator[Run]:
        """Runs, newest first: status, user, sweep_id, archived, limit."""
        from rota.client import scripts

        return drive_items(scripts.runs(self._talk, **filters))

    def wait(self, run_id: str, *, timeout_s: float | None = None, patience_s: float = 300.0) -> Run:
        """The run once it has ended."""
        from rota.client import scripts

        return drive(scripts.wait(self._talk, run_id, timeout_s=timeout_s, patience_s=patience_s))

    def follow(self, run_id: str, *, attempt: int = 1, offset: int = 0, patience_s: float = 300.0) -> Iterator[str]:
        """The output of a run as it comes, until it has ended."""
        from rota.client import scripts

        return drive_items(scripts.follow(self._talk, run_id, attempt=attempt, offset=offset, patience_s=patience_s))

    def events(self, after: int | None = None, *, patience_s: float = 300.0) -> Iterator[dict[str, Any]]:
        """What happens, as it happens; `after` is the `seq` of the last event that was seen."""
        from rota.client import scripts

        return drive_items(scripts.events(self._talk, after, patience_s=patience_s))

    submit = Does(calls.submit)
    run = Does(calls.run)
    runs_page = Does(calls.runs_page)
    queue = Does(calls.queue)
    job = Does(calls.job)
    cancel = Does(calls.cancel)
    hold = Does(calls.hold)
    release = Does(calls.release)
    set_priority = Does(calls.set_priority)
    rerun = Does(calls.rerun)
    explain = Does(calls.explain)
    eta = Does(calls.eta)
    calibration = Does(calls.calibration)
    workspace = Does(calls.workspace)
    logs = Does(calls.logs)
    create_sweep = Does(calls.create_sweep)
    start_sweep = Does(calls.start_sweep)
    cancel_sweep = Does(calls.cancel_sweep)
    sweep = Does(calls.sweep)
    sweeps = Does(calls.sweeps)
    nodes = Does(calls.nodes)
    drain = Does(calls.drain)
    undrain = Does(calls.undrain)
    capacity = Does(calls.capacity)
    usage = Does(calls.usage)
    reservations = Does(calls.reservations)
    reserve = Does(calls.reserve)
    cancel_reservation = Does(calls.cancel_reservation)
    policy = Does(calls.policy)
    set_policy = Does(calls.set_policy)
    tokens = Does(calls.tokens)
    create_token = Does(calls.create_token)
    revoke_token = Does(calls.revoke_token)
    login_link = Does(calls.login_link)
    whoami = Does(calls.whoami)
    health = Does(calls.health)


__all__ = ["Client", "RotaError"]
