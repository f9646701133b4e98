"""The hot statements, compiled once per database: Core writes the SQL, the driver gets the string.

Executing a Core construct costs more than SQLite's own work on it; `exec_driver_sql` with these costs a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Dialect, Table, bindparam, delete, insert, literal_column, select, update
from sqlalchemy.sql import ClauseElement

from rota.adapters.store import schema as s
from rota.adapters.store.envs import SLACK
from rota.adapters.store.runrows import RUN_COLUMNS


class Statements:
    """Each attribute is SQL text; its parameters are positional, in the order noted beside it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # version, at, next_seq, live, sum, epoch, version before
        self.move_head = self._compile(
            update(s.head)
            .values({name: bindparam(f"v{n}") for n, name in enumerate(("version", "at", "next_seq", "live", "sum"))})
            .where(s.head.c.epoch == bindparam("b1"), s.head.c.version == bindparam("b2")),
            ("v0", "v1", "v2", "v3", "v4", "b1", "b2"),
        )
        self.read_head = self._compile(select(s.head), ())
        self.upsert_env = self._upsert_env()
        self.insert_event = self._insert(s.events)
        self.insert_run = self._insert(s.runs)
        self.update_run = self._update_run(
            "state", "live", "priority", "ended_at", "facts", "facts_sum", "archived"
        )  # and then seq, here and below
        self.edit_run = self._update_run("name", "spec", "env", "spec_sum", "grp")
        self.insert_attempt = self._insert(s.attempts)
        self.insert_key = self._insert(s.keys)
        self.insert_reservation = self._insert(s.reservations)
        self.upsert_reservation = self._upsert(s.reservations)
        self.delete_node = self._compile(delete(s.nodes).where(s.nodes.c.id == bindparam("b_id")), ("b_id",))
        self.delete_reservation = self._compile(
            delete(s.reservations).where(s.reservations.c.id == bindparam("b_id")), ("b_id",)
        )
        self.delete_run = self._compile(delete(s.runs).where(s.runs.c.id == bindparam("b_id")), ("b_id",))
        self.delete_attempts = self._compile(
            delete(s.attempts).where(s.attempts.c.run_id == bindparam("b_id")), ("b_id",)
        )
        self.delete_record = self._compile(
            delete(s.records).where(s.records.c.kind == bindparam("b_k"), s.records.c.id == bindparam("b_id")),
            ("b_k", "b_id"),
        )
        self.upsert_record = self._upsert(s.records, keep=("seq", "at", "by"))
        self.upsert_node = self._upsert(s.nodes, keep=("position",))
        self.upsert_setting = self._upsert(s.settings)
        self.upsert_usage = self._upsert(s.usage)
        self.get_run = self._compile(
            select(*(s.runs.c[name] for name in RUN_COLUMNS)).where(s.runs.c.id == bindparam("b_id")), ("b_id",)
        )
        self.get_record = self._compile(
            select(s.records).where(s.records.c.kind == bindparam("b_k"), s.records.c.id == bindparam("b_id")),
            ("b_k", "b_id"),
        )
        self.get_key = self._compile(
            select(s.keys).where(s.keys.c.principal == bindparam("b_p"), s.keys.c.key == bindparam("b_k")),
            ("b_p", "b_k"),
        )

    def _update_run(self, *names: str) -> str:
        statement = (
            update(s.runs)
            .values({name: bindparam(f"v_{name}") for name in names})
            .where(s.runs.c.seq == bindparam("b_seq"))
        )
        return self._compile(statement, (*(f"v_{name}" for name in names), "b_seq"))

    def _insert(self, table: Table) -> str:
        return self._compile(insert(table), [column.name for column in table.columns])

    def _upsert(self, table: Table, keep: Sequence[str] = ()) -> str:
        """Insert, or rewrite the row that has this primary key, but for the columns in `keep`."""
        statement = _insert_of(self._dialect)(table)
        names = [column.name for column in table.columns if not column.primary_key and column.name not in keep]
        rewritten = statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_={name: statement.excluded[name] for name in names}
        )
        return self._compile(rewritten, [column.name for column in table.columns])

    def _upsert_env(self) -> str:
        """An environment that is there keeps its text; `seq` moves when it lags behind: see envs."""
        statement = _insert_of(self._dialect)(s.envs)
        moved = statement.on_conflict_do_update(
            index_elements=[s.envs.c.id],
            set_={"seq": statement.excluded.seq},
            where=s.envs.c.seq < statement.excluded.seq - literal_column(str(SLACK)),
        )
        return self._compile(moved, [column.name for column in s.envs.columns])

    def _compile(self, statement: ClauseElement, order: Sequence[str]) -> str:
        compiled = statement.compile(dialect=self._dialect)
        got = list(compiled.positiontup or ())  # type: ignore[attr-defined]
        if got != list(order):  # the caller's tuples would land in the wrong columns
            raise TypeError(f"{compiled} takes {got}, not {list(order)}")
        return str(compiled)


def _insert_of(dialect: Dialect) -> Any:
    """Return the dialect's own `insert`, which knows ON CONFLICT. To load the other dialect would take long."""
    if dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as into_sqlite

        return into_sqlite
    from sqlalchemy.dialects.postgresql import insert as into_postgres

    return into_postgres
