"""How much of the server's memory, disk and queue one person may take. Admins have no budget.

Two bounds are measured in the bytes of specs and documents, with WORD_BYTES for each word of a command line besides:

- live: the specs of a person's runs that have not ended. They lie in memory, and every start of the server reads them.
- ledger: what a person's commands have added to the ledger, which keeps it for months. The amount drains at the rate of
  one budget a day, so that a person who submits and cancels in a circle is bounded too.

The ledger's amount is charged after the fact: a command is refused once the budget is spent, and the command that
spends it is let through (one command is bounded by MAX_MANY_BYTES). It begins anew when the server starts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from rota.app.authz import Principal, Role
from rota.app.commands import SubmitMany
from rota.app.errors import Full, Invalid
from rota.core import events as e
from rota.core.state import State
from rota.core.times import about
from rota.core.weight import own_bytes, text_bytes

MIB = 1 << 20
# Requests for GPUs, CPUs and memory of one person that differ. Each costs every pass about 40 us, whoever waits for it,
# and a few more for each of its bands of length and priority, of which there are about 300.
MAX_SHAPES = 200
# Open dependencies of one user's waiting runs. The end of a run visits all that wait for it in one turn of the writer,
# and cancels them and theirs where it failed; all other writes wait for that.
MAX_EDGES = 50_000
# Places of the queue that each person has, whatever others hold, until the queue itself is full.
SURE_PLACES = 10_000
DAY_S = 86400.0
EVENT_BYTES = 300  # of a row of the log without a spec or a document
# All specs and documents of one command. The ledger writes each twice, in the log and in a row, and whoever sends a
# command meanwhile waits for that: 16 MiB take about 0.3 s.
MAX_MANY_BYTES = 16 * MIB
REMEMBERED = 10_000  # people; the ledger's amounts of those least recently seen are forgotten


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of one person, in bytes; 0 = no bound."""

    live: int = 64 * MIB
    ledger: int = 256 * MIB  # a day


class Budget:
    def __init__(self, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas()
        self._added: OrderedDict[str, tuple[float, float]] = OrderedDict()  # person -> (bytes, at)

    # -- live ---------------------------------------------------------------------------------------------------------
    def must_fit_live(self, state: State, who: Principal, user: str, more: int) -> None:
        """Refuse a run that would take this person's live specs over the budget."""
        used, most = state.weights.of(user), self.quotas.live
        if who.role is Role.ADMIN or not most or used + more <= most:
            return
        raise Full(
            f"{user}'s runs that have not ended take {amount(used)} of commands and environments, and this would add "
            f"{amount(more)}; the limit is {amount(most)} a person. Wait until some have ended, cancel some, or put "
            "long commands into a script"
        )

    def must_fit_shapes(self, state: State, who: Principal, user: str, more: int) -> None:
        """Refuse a run whose request none of this person's live runs has, where they have very many already."""
        used = state.weights.shapes_by_user.get(user, 0)
        if who.role is not Role.ADMIN and used + more > MAX_SHAPES:
            raise Full(
                f"{user}'s runs that have not ended ask for {used + more - 1} different amounts of GPUs, CPUs and "
                f"memory; the limit is {MAX_SHAPES} a person. Round what they ask for, or wait until some have ended"
            )

    # -- places of the queue ------------------------------------------------------------------------------------------
    def must_fit_share(self, state: State, who: Principal, user: str, mine: int, others: int) -> None:
        """Refuse a run of a person who holds `mine` places of the queue already, where that is the person's share.
        `others`: places held by everybody else."""
        if who.role is Role.ADMIN or mine < (most := share(state.policy.max_queue, others, who.role)):
            return
        for_agent = " while an agent submits" if who.role is Role.AGENT else ""
        raise Full(
            f"{user} has {mine} runs waiting, the limit is {most} of the {state.policy.max_queue} places of the queue"
            f"{for_agent}; cancel some or wait. An admin can raise max_queue"
        )

    # -- the ledger ---------------------------------------------------------------------------------------------------
    def must_fit_ledger(self, who: Principal, now: float) -> None:
        """Refuse to write anything more for a person whose budget of the day is spent."""
        most = self.quotas.ledger
        if who.role is Role.ADMIN or not most:
            return
        used = self._level(who.owner, now)
        if used >= most:
            wait = about((used - most) / most * DAY_S + 60.0)
            raise Full(
                f"{who.owner} has added {amount(used)} to the ledger within a day, the limit is {amount(most)} a "
                f"person; it frees up with time: send it again in {wait}. Cancelling and reporting ends stay possible"
            )

    def charge(self, who: Principal, events: Iterable[e.Event], heavier: int, now: float) -> None:
        """Book what a command added. `heavier`: by how much it changed the bytes of the person's live specs, where an
        environment that another live run holds counts nothing, as it is stored already."""
        if who.role is Role.ADMIN or not self.quotas.ledger:
            return
        size = max(0, heavier) + _written_bytes(events)
        self._added[who.owner] = (self._level(who.owner, now) + size, now)
        self._added.move_to_end(who.owner)
        if len(self._added) > REMEMBERED:
            self._added.popitem(last=False)

    def _level(self, person: str, now: float) -> float:
        level, at = self._added.get(person, (0.0, now))
        return max(0.0, level - max(0.0, now - at) * self.quotas.ledger / DAY_S)


def share(max_queue: int, others: int, role: Role) -> int:
    """Return how many runs of one person may wait: half of the places that others leave, so that one person never fills
    the queue. An agent submits only up to a tenth of the queue. A run does not keep who sent it, so the person's own
    runs count there too."""
    most = (max_queue - others) // 2
    if role is Role.AGENT:
        most = min(most, max_queue // 10)
    return max(most, min(max_queue, SURE_PLACES))


def must_fit_edges(state: State, user: str, more: int) -> None:
    """Refuse a run whose dependencies, with those that the same command adds before it (`more` in all), are too many
    beside those that the user's waiting runs have. Admins too: the writer stands still for everybody."""
    load = state.load.get(user)
    used = load.edges if load is not None else 0
    if used + more > MAX_EDGES:
        raise Full(
            f"depends_on: {user}'s waiting runs wait for {used} dependencies, and this would make it at least "
            f"{used + more}; the limit is {MAX_EDGES}. Let the runs wait for one run that waits for the rest, or wait "
            "until some dependencies have ended",
            "depends_on",
        )


def must_fit_one_command(command: SubmitMany, specs: int = 0) -> None:
    """Refuse many runs at once whose specs and documents are too large together. `specs`: the bytes of all specs; asked
    first without them, so that nothing dear is done with a command that is too large by its command lines alone."""
    submits = command.submits
    size = specs or sum(len(part) for one in submits for part in one.spec.argv)
    size += sum(len(draft.body) for draft in command.records)
    size += sum(len(draft.body) for one in submits for draft in one.records)
    if size > MAX_MANY_BYTES:
        raise too_large("submits", size, len(submits))


def too_large(field: str, size: int, runs: int) -> Invalid:
    """The refusal of a command whose bytes times runs are over the bound; `size` is the product."""
    return Invalid(
        f"{field}: {runs:,} runs of {amount(size / max(runs, 1))} each are {amount(size)} together; one request may "
        f"take {amount(MAX_MANY_BYTES)}. Make fewer runs, or put what is long into a file or a script",
        field,
    )


def _written_bytes(events: Iterable[e.Event]) -> int:
    """Return what these events add to the ledger, specs of new runs aside."""
    size = 0
    for event in events:
        size += EVENT_BYTES
        if isinstance(event, e.RunEdited):
            size += own_bytes(event.spec)
        elif isinstance(event, e.RecordPut):
            size += text_bytes(event.body)
        elif isinstance(event, (e.RunHeld, e.RunEnded, e.StopRequested, e.ReservationEnded)):
            size += 2 * text_bytes(event.why)  # in the event and in a row, as below
        elif isinstance(event, e.AttemptEnded):
            size += 2 * text_bytes(event.why + event.exit.message)
        elif isinstance(event, e.ReservationMade):
            one = event.reservation
            # in the event and in a row
            size += 2 * text_bytes("".join((one.name, one.why, one.user, *one.users)))
    return size


def amount(size: float) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / MIB:,.1f} MiB" if size >= MIB else f"{size / 1024:,.1f} KiB"
