"""The asynchronous client: asyncio's streams under the shared logic."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from rota.client import calls, scripts
from rota.client.address import Address, find_token, find_url
from rota.client.errors import Unreachable
from rota.client.exchange import Call, Exchange, Steps
from rota.client.method import Described
from rota.client.sync import READ, lost, pauses, unix_link, unreachable

if TYPE_CHECKING:
    from types import TracebackType

    from rota.client.model.run import Run

P = ParamSpec("P")
T = TypeVar("T")

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


LEAVE_S = 1.0
LEAVING = 32  # the last so many connections that were closed are waited for in the end


class Streams:
    """`Io` with asyncio's streams."""

    def __init__(self) -> None:
        self._leaving: deque[asyncio.StreamWriter] = deque(maxlen=LEAVING)

    async def connect(self, address: Address, timeout_s: float) -> Link:
        try:
            async with asyncio.timeout(timeout_s):
                if not address.socket:
                    return await self._connect_tcp(address)
            return await self._connect_unix(address.socket, timeout_s)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            raise unreachable(address, error) from error

    async def _connect_unix(self, path: str, timeout_s: float) -> Link:
        """Connect here and not in asyncio, which takes a socket for connected where the accept queue is full."""
        waits = pauses(timeout_s)
        while True:
            try:
                return await asyncio.open_unix_connection(sock=unix_link(path))
            except BlockingIOError:
                pause_s = next(waits, None)
                if pause_s is None:
                    raise
            await self.sleep(pause_s)

    async def _connect_tcp(self, address: Address) -> Link:
        *first, last = address.hosts
        tls = address.tls or None
        named = address.host if address.tls else None
        for host in first:
            try:
                return await asyncio.open_connection(host, address.port, ssl=tls, server_hostname=named)
            except ssl.SSLError:  # a server answers there, and is not to be trusted
                raise
            except OSError:
                continue
        return await asyncio.open_connection(last, address.port, ssl=tls)

    async def write(self, link: Link, data: bytes, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                link[1].write(data)
                await link[1].drain()
        except OSError as error:
            raise lost(error) from error

    async def read(self, link: Link, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await link[0].read(READ)
        except OSError as error:
            raise lost(error) from error

    def socket_of(self, link: Link) -> Any:
        return link[1].get_extra_info("socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self, link: Link) -> None:
        link[1].close()
        self._leaving.append(link[1])

    async def leave(self) -> None:
        """Let the transports take leave: with TLS that takes the other side's word and more than one turn of the loop,
        and a loop that ended before would leave their sockets open."""
        while self._leaving:
            writer = self._leaving.popleft()
            try:
                async with asyncio.timeout(LEAVE_S):
                    await writer.wait_closed()
            except OSError:  # gone in another way, or too slow (TimeoutError is one)
                writer.transport.abort()
                await asyncio.sleep(0)

    def fresh(self, link: Link) -> bool:
        return not link[0].at_eof() and not link[1].is_closing()


async def drive(steps: Steps[T]) -> T:
    """Run the shared logic to its end: await each act, hand its outcome or its error back."""
    try:
        act = next(steps)
        while True:
            try:
                outcome = await act
            except BaseException as error:  # noqa: BLE001 - it is not swallowed: the logic decides, and raises it again
                act = steps.throw(error)
            else:
                act = steps.send(outcome)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def drive_items(script: Generator[Any, Any, None]) -> AsyncIterator[Any]:
    """The same for a script with values for the caller."""
    try:
        act = next(script)
        while True:
            if isinstance(act, scripts.Item):
                yield act.value
                act = next(script)
                continue
            try:
                outcome = await act
            except BaseException as error:  # noqa: BLE001 - as above
                act = script.throw(error)
            else:
                act = script.send(outcome)
    except StopIteration:
        return
    finally:
        script.close()


class Does(Described[P, T]):
    """A call as a method that is awaited."""

    answers = "Awaitable[{}]"

    def __call__(self, client: AsyncClient, /, *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return client.do(self.describe(*args, **named))

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: AsyncClient | None, owner: type) -> Callable[..., Any] | Callable[P, Awaitable[T]]:
        return self.alone() if client is None else MethodType(self, client)


class AsyncClient:
    """The same as `Client`, with `await` and `async for`. For the tasks of one event loop."""

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
        self._streams = Streams()
        self._talk = Exchange(
            self._streams,
            Address(url),
            token,
            connect_s=connect_s,
            answer_s=answer_s,
            tries=tries,
            backoff_s=backoff_s,
            agent=f"rota/{__version__}",
        )

    @classmethod
    def from_env(cls, url: str = "", **options: Any) -> AsyncClient:
        """The server and the token of this environment; see `rota.client.address`."""
        return cls(url or find_url()[0], find_token()[0], **options)

    async def do(self, call: Call[T]) -> T:
        return await drive(self._talk.call(call))

    async def do_with_headers(self, call: Call[T]) -> tuple[T, dict[str, str]]:
        return await drive(self._talk.call_with_headers(call))

    async def close(self) -> None:
        self._talk.close()
        await self._streams.leave()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def runs(self, **filters: Any) -> AsyncIterator[Run]:
        """Runs, newest first: status, user, sweep_id, archived, limit."""
        return drive_items(scripts.runs(self._talk, **filters))

    async def wait(self, run_id: str, *, timeout_s: float | None = None, patience_s: float = 300.0) -> Run:
        """The run once it has ended."""
        return await drive(scripts.wait(self._talk, run_id, timeout_s=timeout_s, patience_s=patience_s))

    def follow(
        self, run_id: str, *, attempt: int = 1, offset: int = 0, patience_s: float = 300.0
    ) -> AsyncIterator[str]:
        """The output of a run as it comes, until it has ended."""
        return drive_items(scripts.follow(self._talk, run_id, attempt=attempt, offset=offset, patience_s=patience_s))

    def events(self, after: int | None = None, *, patience_s: float = 300.0) -> AsyncIterator[dict[str, Any]]:
        """What happens, as it happens; `after` is the `seq` of the last event that was seen."""
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


__all__ = ["AsyncClient", "Unreachable"]
