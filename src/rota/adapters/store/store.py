"""The Store: events and their projection rows, in one transaction."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from rota.adapters.store import rows, runrows
from rota.adapters.store import schema as s
from rota.adapters.store.changes import changes
from rota.adapters.store.checkpoint import pack, replay_onto, unpack
from rota.adapters.store.database import Database
from rota.adapters.store.envs import EnvReader, EnvSizes, EnvTexts, drop_unused
from rota.adapters.store.load import collector_off, load_state
from rota.adapters.store.sql import Statements
from rota.adapters.store.writer import Writer, run_many
from rota.app.ports import (
    PAGE_BYTES,
    Fenced,
    KeyRecord,
    Record,
    RunFilter,
    StoreBroken,
    StoredEvent,
    StoreError,
    UserTotal,
)
from rota.core.events import Event
from rota.core.run import ENDED, PastAttempt, Run, RunState
from rota.core.state import State

MOST = 10_000  # rows in one answer
DROPPED_AT_ONCE = 5_000  # rows of one table in one compact(): the engine waits for it
READ_AT_ONCE = 50  # runs of a page: so many may be read that are not in it
IDS_AT_ONCE = 500  # in one question: databases bound how many parameters it has
CHECKPOINT_EVERY = 10_000  # events, and more when much is live: packing takes its time then


class SqlStore:
    """See rota.app.ports.Store. `append`, `compact` and `begin_epoch` come from one thread, reads from any."""

    def __init__(self, database: Database, writer: Connection | None) -> None:
        """Without a writer it can only be read."""
        self._database = database
        self._sql = Statements(database.readers.dialect)
        self._env_texts = EnvTexts()
        self._only_writer = None if writer is None else Writer(database, writer, self._sql)

    @property
    def _writer(self) -> Writer:
        if self._only_writer is None:
            raise StoreError("this store was opened to be read only")
        return self._only_writer

    # -- for what belongs to opening (see house) ---------------------------------------------------------------------
    def transaction(self) -> AbstractContextManager[Connection]:
        return self._writer.transaction()

    @property
    def upsert_setting(self) -> str:
        return self._sql.upsert_setting

    # -- writing ----------------------------------------------------------------------------------------------------
    def begin_epoch(self) -> int:
        return self._writer.begin_epoch()

    def append(self, events: Sequence[Event], state: State, keys: Sequence[KeyRecord] = ()) -> None:
        if not events:
            if keys:
                raise ValueError("idempotency keys come with the events they answer for")
            return
        found = changes(events, state, keys, self._env_texts)
        sql = self._sql
        batch = (
            (sql.insert_event, found.events),
            (sql.upsert_env, found.envs),
            (sql.insert_run, found.new_runs),
            (sql.update_run, found.changed_runs),
            (sql.edit_run, found.edited_runs),
            (sql.insert_attempt, found.attempts),
            (sql.delete_node, found.gone_nodes),
            (sql.upsert_node, found.nodes),
            (sql.upsert_setting, found.settings),
            (sql.upsert_usage, found.usage),
            (sql.insert_reservation, found.reservations),
            (sql.upsert_reservation, found.ended_reservations),
            (sql.delete_reservation, found.gone_reservations),
            (sql.delete_record, found.gone_records),
            (sql.upsert_record, found.records),
            (sql.insert_key, found.keys),
        )
        self._writer.commit(batch, self._head(state, state.version - len(events)))

    def keep_room(self, state: State, size: int) -> None:
        self._writer.keep_room(self._head(state, state.version), size)

    def _head(self, state: State, before: int) -> tuple[Any, ...]:
        epoch = self._writer.epoch
        if epoch is None:
            raise Fenced("this server has not begun an epoch")
        live = state.waiting + state.active + len(state.elsewhere)
        sum_ = rows.head_sum(epoch, state.version, state.at, state.next_seq, live)
        return (state.version, state.at, state.next_seq, live, sum_, epoch, before)

    def compact(self, state: State, before: float, keep_runs_since: float, passing: Collection[str] = ()) -> int:
        """At most DROPPED_AT_ONCE rows of a table go in one call; call again while something went."""
        with self._writer.transaction() as connection:
            self._writer.move(connection, self._head(state, state.version))
            last_old = self._last_before(connection, before, state.version)
            newest = connection.execute(select(func.max(s.checkpoints.c.seq))).scalar() or 0
            behind = state.version - newest
            if last_old > newest or behind >= max(CHECKPOINT_EVERY, 10 * len(state.runs)):
                blob = pack(state)
                connection.execute(delete(s.checkpoints))
                connection.execute(insert(s.checkpoints), self._checkpoint(state, blob))
            dropped = self._drop(connection, last_old, before, keep_runs_since)
            dropped += sum(self._drop_passing(connection, kind, keep_runs_since) for kind in passing)
            oldest = connection.execute(select(func.min(s.events.c.seq))).scalar()
            return dropped + drop_unused(connection, oldest or state.version + 1, DROPPED_AT_ONCE)

    def _last_before(self, connection: Connection, before: float, version: int) -> int:
        """Seq of the last event of the log's old part, which ends at the first new one: times hardly ever go back."""
        first_new = select(s.events.c.seq).where(s.events.c.at >= before).order_by(s.events.c.seq).limit(1)
        seq = connection.execute(first_new).scalar()
        return version if seq is None else int(seq) - 1

    def _checkpoint(self, state: State, blob: bytes) -> dict[str, Any]:
        return {"seq": state.version, "at": state.at, "body": blob, "sum": zlib.crc32(blob)}

    def _drop(self, connection: Connection, last_old: int, before: float, keep_runs_since: float) -> int:
        old_runs = (
            select(s.runs.c.id)
            .where(s.runs.c.live == 0, s.runs.c.ended_at < keep_runs_since)
            .order_by(s.runs.c.ended_at)
            .limit(DROPPED_AT_ONCE)
        )
        ids = list(connection.execute(old_runs).scalars())
        theirs = self._drop_records(connection, ids)
        if theirs >= DROPPED_AT_ONCE:
            return theirs  # the rest of them, and the runs themselves, at the next call
        oldest = connection.execute(select(func.min(s.events.c.seq))).scalar() or 0
        upto = min(last_old, oldest + DROPPED_AT_ONCE)
        dropped = theirs + connection.execute(delete(s.events).where(s.events.c.seq <= upto)).rowcount
        if ids:
            dropped += run_many(connection, self._sql.delete_attempts, [(run_id,) for run_id in ids])
            dropped += run_many(connection, self._sql.delete_run, [(run_id,) for run_id in ids])
        return dropped + connection.execute(delete(s.keys).where(s.keys.c.at < before)).rowcount

    def _drop_records(self, connection: Connection, run_ids: Sequence[str]) -> int:
        """What belongs to runs that go: their alerts, their workspaces."""
        names: list[tuple[Any, ...]] = []
        r = s.records.c
        for at in range(0, len(run_ids), IDS_AT_ONCE):
            some = r.parent.in_(run_ids[at : at + IDS_AT_ONCE])
            found = connection.execute(select(r.kind, r.id).where(some).limit(DROPPED_AT_ONCE - len(names)))
            names += map(tuple, found)
            if len(names) >= DROPPED_AT_ONCE:
                break
        return run_many(connection, self._sql.delete_record, names) if names else 0

    def _drop_passing(self, connection: Connection, kind: str, before: float) -> int:
        """Old ones of a kind whose runs are all gone: neither their own, nor of a sweep by their name."""
        r, names, after = s.records.c, list[tuple[Any, ...]](), 0
        runs = (select(s.runs.c.seq).where(s.runs.c.id == r.parent), select(s.runs.c.seq).where(_grouped(r.id)))
        needed = or_(*(exists(which) for which in runs))
        oldest = select(r.kind, r.id, r.seq, r.at, needed).where(r.kind == rows.to_column(kind)).order_by(r.seq)
        while len(names) < DROPPED_AT_ONCE:
            found = connection.execute(oldest.where(r.seq > after).limit(IDS_AT_ONCE)).all()
            old = [row for row in found if row.at < before]
            names += [(row.kind, row.id) for row in old if not row[4]]
            if len(old) < IDS_AT_ONCE:  # in the order of making, so the others are younger
                break
            after = old[-1].seq
        return run_many(connection, self._sql.delete_record, names) if names else 0

    # -- the whole state --------------------------------------------------------------------------------------------
    def load(self) -> State:
        with self._read() as connection:
            return load_state(connection)

    def replay(self) -> State:
        with self._read() as connection, collector_off():
            newest = connection.execute(
                select(s.checkpoints).order_by(s.checkpoints.c.seq.desc()).limit(1)
            ).one_or_none()
            state = State() if newest is None else unpack(newest.seq, newest.body, newest.sum)
            state.index_all()
            envs = EnvReader(connection)
            later = select(s.events).where(s.events.c.seq > state.version).order_by(s.events.c.seq)
            for chunk in connection.execute(later).partitions(2_000):
                replay_onto(state, (rows.read_event(row, envs.of) for row in chunk))
            _, _, version, *_ = connection.exec_driver_sql(self._sql.read_head).one()
            if state.version != version:
                raise StoreBroken(f"table events: the log ends at {state.version}, {version} was written")
            return state

    # -- reading ----------------------------------------------------------------------------------------------------
    def run(self, run_id: str) -> Run | None:
        with self._read() as connection:
            row = connection.exec_driver_sql(self._sql.get_run, (rows.to_column(run_id),)).one_or_none()
            return None if row is None else runrows.RunReader(EnvReader(connection)).read(row)

    def runs(self, which: RunFilter) -> Sequence[Run]:
        query = _runs(which).limit(_bounded(which.limit))
        with self._read() as connection:
            return runrows.RunReader(EnvReader(connection)).read_many(connection.execute(query).all())

    def runs_page(self, which: RunFilter, most_bytes: int = PAGE_BYTES) -> tuple[Sequence[Run], bool]:
        found: list[Run] = []
        limit, size = _bounded(which.limit), 0
        with self._read() as connection, connection.execute(_runs(which).limit(limit + 1)) as result:
            reader, envs = runrows.RunReader(EnvReader(connection)), EnvSizes(connection)
            for some in result.partitions(READ_AT_ONCE):
                for at, (row, env) in enumerate(zip(some, envs.of([row.env for row in some]), strict=True)):
                    size += len(row.spec) + len(row.facts) + env
                    if len(found) + at == limit or (size > most_bytes and len(found) + at):
                        return [*found, *reader.read_many(some[:at])], True
                found += reader.read_many(some)
        return found, False

    def run_ids(self, which: RunFilter) -> Sequence[str]:
        query = _runs(which).with_only_columns(s.runs.c.id).limit(_bounded(which.limit))
        with self._read() as connection:
            return list(connection.execute(query).scalars())

    def attempts(self, run_id: str) -> Sequence[PastAttempt]:
        a = s.attempts.c
        query = (
            select(a.id, a.body, a.sum).where(a.run_id == rows.to_column(run_id)).order_by(a.number.desc()).limit(MOST)
        )
        with self._read() as connection:
            return [rows.read_attempt(row) for row in reversed(connection.execute(query).all())]

    def key(self, principal: str, key: str) -> KeyRecord | None:
        with self._read() as connection:
            wanted = (rows.to_column(principal), rows.to_column(key))
            row = connection.exec_driver_sql(self._sql.get_key, wanted).one_or_none()
            return None if row is None else rows.read_key(row)

    def used_keys(self, principal: str, keys: Sequence[str]) -> Mapping[str, KeyRecord]:
        k, found = s.keys.c, dict[str, KeyRecord]()
        with self._read() as connection:
            for at in range(0, len(keys), IDS_AT_ONCE):
                some = [rows.to_column(key) for key in keys[at : at + IDS_AT_ONCE]]
                query = select(s.keys).where(k.principal == rows.to_column(principal), k.key.in_(some))
                for record in map(rows.read_key, connection.execute(query)):
                    found[record.key] = record
        return found

    def events(self, after: int, limit: int, run_id: str | None = None) -> Sequence[StoredEvent]:
        query = select(s.events).where(s.events.c.seq > after).order_by(s.events.c.seq).limit(_bounded(limit))
        if run_id is not None:
            query = query.where(s.events.c.run_id == rows.to_column(run_id))
        with self._read() as connection:
            envs = EnvReader(connection)
            return [rows.read_event(row, envs.of) for row in connection.execute(query).all()]

    def counts(self) -> Mapping[RunState, int]:
        return self.counted()[0]

    def counted(self) -> tuple[Mapping[RunState, int], int]:
        """From the small indices: of what has ended, all less what was put out of sight; of what lives, each one."""
        r = s.runs.c
        ended, gone, live = (
            r.live == literal_column("0"),
            r.archived == literal_column("1"),
            r.live == literal_column("1"),
        )
        found: dict[RunState, int] = dict.fromkeys(RunState, 0)
        with self._read() as connection:
            for which, sign in (
                (ended, 1),
                (and_(gone, ended), -1),
                (and_(live, r.archived == literal_column("0")), 1),
            ):
                for state, count in connection.execute(select(r.state, func.count()).where(which).group_by(r.state)):
                    found[RunState(state)] += sign * count
            _, _, version, *_ = connection.exec_driver_sql(self._sql.read_head).one()
        return found, int(version)

    def record(self, kind: str, record_id: str) -> Record | None:
        with self._read() as connection:
            wanted = (rows.to_column(kind), rows.to_column(record_id))
            row = connection.exec_driver_sql(self._sql.get_record, wanted).one_or_none()
            return None if row is None else rows.read_record(row)

    def records(
        self,
        kind: str,
        *,
        parent: str | None = None,
        before: int | None = None,
        limit: int = 100,
        most_bytes: int | None = None,
    ) -> Sequence[Record]:
        r = s.records.c
        query = select(s.records).where(r.kind == rows.to_column(kind))
        if parent is not None:
            query = query.where(r.parent == rows.to_column(parent))
        if before is not None:
            query = query.where(r.seq < before)
        query = query.order_by(r.seq.desc()).limit(_bounded(limit))
        found: list[Record] = []
        size = 0
        with self._read() as connection:
            for row in connection.execute(query):
                found.append(rows.read_record(row))
                size += found[-1].size
                if most_bytes is not None and size >= most_bytes:
                    break
        return found

    def count_records(self, kind: str, most: int, by: str = "") -> int:
        r = s.records.c
        query = select(r.seq).where(r.kind == rows.to_column(kind))
        if by:
            query = query.where(r.by == rows.to_column(by))
        some = query.limit(most).subquery()
        with self._read() as connection:
            return int(connection.execute(select(func.count()).select_from(some)).scalar_one())

    def totals(self, since: float, until: float) -> Sequence[UserTotal]:
        a = s.attempts.c
        query = (
            select(a.user, func.count(), func.sum(a.gpu_s))
            .where(a.ended_at >= since, a.ended_at < until)
            .group_by(a.user)
            .order_by(func.sum(a.gpu_s).desc(), a.user)
            .limit(MOST)
        )
        with self._read() as connection:
            return [UserTotal(rows.from_column(user), n, gpu_s) for user, n, gpu_s in connection.execute(query)]

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """One moment of the database, whatever is written meanwhile."""
        try:
            with self._database.readers.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._database.translate(error) from error
        except UnicodeDecodeError as error:
            raise StoreBroken(f"damaged text in the database: {error}") from error

    def close(self) -> None:
        self._database.readers.dispose()  # first: who reads keeps SQLite's log from being folded in
        if self._only_writer is not None:
            self._only_writer.close()
        self._database.close()


def _runs(which: RunFilter) -> Select[Any]:
    query = select(*(s.runs.c[name] for name in runrows.RUN_COLUMNS))
    if which.user is not None:
        query = query.where(s.runs.c.user == rows.to_column(which.user))
    if which.states:
        query = query.where(s.runs.c.state.in_(sorted(map(str, which.states))))
        if which.states <= ENDED:  # in words the partial indices understand
            query = query.where(s.runs.c.live == 0)
        elif not which.states & ENDED:
            query = query.where(s.runs.c.live == 1)
    if which.group is not None:
        query = query.where(s.runs.c.grp == rows.to_column(which.group))
        if which.group:
            query = query.where(s.runs.c.grp != "")  # as above
    if which.archived is not None:
        query = query.where(s.runs.c.archived == literal_column("1" if which.archived else "0"))
    if which.before is not None:
        query = query.where(s.runs.c.seq < which.before)
    return query.order_by(s.runs.c.seq.desc())


def _bounded(limit: int) -> int:
    return max(0, min(limit, MOST))


def _grouped(group: ColumnElement[str]) -> ColumnElement[bool]:
    """In words the partial index understands."""
    return and_(s.runs.c.grp == group, s.runs.c.grp != "")
