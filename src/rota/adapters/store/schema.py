"""The tables, the same on SQLite and PostgreSQL.

`events` is the truth; the other tables are projections of it, written in the same transaction. Bodies are JSON text.
`sum` columns are CRC-32s of what the row says: neither SQLite nor a default PostgreSQL notices a flipped bit in a row,
and a scheduler that starts with a wrong state is worse than one that refuses to start.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, Table, Text, text

APPLICATION_ID = 0x526F7461  # "Rota", in the header of our SQLite files
# oldest first; a database with a revision that is not here was made by a newer Rota
REVISIONS = ("0001", "0002", "0003", "0004")

BIG = BigInteger().with_variant(Integer(), "sqlite")  # SQLite: INTEGER, so that a primary key is the row's own number

metadata = MetaData()

# one row: where the log stands, and who may write
head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BIG, nullable=False),  # the fence: only the server that began this epoch may append
    Column("version", BIG, nullable=False),  # seq of the last event
    Column("at", Double, nullable=False),
    Column("next_seq", BIG, nullable=False),  # of the next run
    Column("live", BIG, nullable=False),  # how many runs are live: a damaged index cannot hide one
    Column("sum", BIG, nullable=False),
)


def _partial(name: str, *columns: str, where: str) -> Index:
    """Return an index of some rows only, as the revisions make it on every database. PostgreSQL's own word for the
    condition is left to them: SQLAlchemy would load that dialect to check it, at every start on SQLite."""
    return Index(name, *columns, sqlite_where=text(where))


events = Table(
    "events",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("type", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("run_id", Text),
    Column("by", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
    _partial("events_run", "run_id", "seq", where="run_id IS NOT NULL"),
)

runs = Table(
    "runs",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("live", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("gpus", BIG, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("spec", Text, nullable=False),  # rewritten only by an edit
    Column("env", Text, nullable=False),  # its environment as JSON, or which row of `envs` it is
    Column("spec_sum", BIG, nullable=False),
    Column("facts", Text, nullable=False),  # all else that has no column; rewritten when touched
    Column("facts_sum", BIG, nullable=False),
    Column("grp", Text, nullable=False, server_default=""),  # the sweep it belongs to
    Column("archived", Integer, nullable=False, server_default=text("0")),
    _partial("runs_live", "seq", where="live = 1"),
    Index("runs_user", "user", "seq"),
    _partial("runs_ended", "ended_at", where="live = 0"),
    _partial("runs_outcome", "state", "seq", where="live = 0"),
    _partial("runs_grp", "grp", "seq", where="grp <> ''"),
    _partial("runs_env", "env", where="substr(env, 1, 1) = '='"),
    _partial("runs_archived", "seq", where="archived = 1"),
)

# environments that runs and events refer to, each text once
envs = Table(
    "envs",
    metadata,
    Column("id", Text, primary_key=True),  # "=" and the hash of the body
    Column("seq", BIG, nullable=False),  # about the last event that refers to it, see envs.SLACK
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
)

# each ended attempt, written exactly once: the accounts
attempts = Table(
    "attempts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("user", Text, nullable=False),
    Column("gpus", BIG, nullable=False),
    Column("planned_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double, nullable=False),
    Column("cause", Text, nullable=False),
    Column("code", BIG),
    Column("gpu_s", Double, nullable=False),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
    Index("attempts_ended", "ended_at"),
    Index("attempts_run", "run_id", "number"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("position", BIG, nullable=False),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
)

# GPUs that are kept for somebody: those to come, those of now, and past ones that count against a bound still
reservations = Table(
    "reservations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
)

# policy, paused, server, caps; and `house`, the data directory a shared database belongs to
settings = Table(
    "settings",
    metadata,
    Column("key", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("user", Text, primary_key=True),
    Column("gpu_s", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("sum", BIG, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("keys_at", "at"),
)

# small documents of the doors: sweeps, alerts, token hashes; no decision reads them
records = Table(
    "records",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent", Text, nullable=False),
    Column("seq", BIG, nullable=False),  # seq, at and by are of the event that first wrote it
    Column("at", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("sum", BIG, nullable=False),
    Index("records_kind", "kind", "seq"),
    Index("records_parent", "parent", "kind", "seq"),
)

# the live state at one moment, zlib-compressed JSON: where a replay begins once old events are gone
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("sum", BIG, nullable=False),
)
