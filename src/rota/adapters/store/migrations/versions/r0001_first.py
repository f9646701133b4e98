"""Everything, as the first release has it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


HEAD_SUM = 3965078542
SETTINGS = (
    ("policy", "{}", 1093449237),
    ("paused", '{"paused":false,"why":""}', 4191757547),
    ("server", '{"epoch":0,"boot_id":""}', 3234111663),
)


def text(name: str, *, primary_key: bool = False, nullable: bool = False, unique: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=primary_key, nullable=nullable, unique=unique)


def big(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, BIG, primary_key=primary_key, nullable=nullable, autoincrement=False)


def real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def small(name: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=primary_key, nullable=False, autoincrement=False)


def partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    _log()
    _runs()
    _small_tables()
    _first_rows()


def _log() -> None:
    op.create_table(
        "head",
        small("id", primary_key=True),
        big("epoch"),
        big("version"),
        real("at"),
        big("next_seq"),
        big("live"),
        big("sum"),
    )
    op.create_table(
        "events",
        big("seq", primary_key=True),
        real("at"),
        text("type"),
        small("version"),
        text("run_id", nullable=True),
        text("by"),
        text("body"),
        big("sum"),
    )
    partial("events_run", "events", ["run_id", "seq"], "run_id IS NOT NULL")
    op.create_table(
        "checkpoints",
        big("seq", primary_key=True),
        real("at"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        big("sum"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        big("seq", primary_key=True),
        text("id", unique=True),
        text("user"),
        text("name"),
        text("state"),
        small("live"),
        small("priority"),
        big("gpus"),
        real("submitted_at"),
        real("ended_at", nullable=True),
        text("spec"),
        text("env"),
        big("spec_sum"),
        text("facts"),
        big("facts_sum"),
    )
    partial("runs_live", "runs", ["seq"], "live = 1")
    op.create_index("runs_user", "runs", ["user", "seq"])
    partial("runs_ended", "runs", ["ended_at"], "live = 0")
    partial("runs_outcome", "runs", ["state", "seq"], "live = 0")
    op.create_table(
        "attempts",
        text("id", primary_key=True),
        text("run_id"),
        small("number"),
        text("user"),
        big("gpus"),
        real("planned_at"),
        real("started_at", nullable=True),
        real("ended_at"),
        text("cause"),
        big("code", nullable=True),
        real("gpu_s"),
        text("body"),
        big("sum"),
    )
    op.create_index("attempts_ended", "attempts", ["ended_at"])
    op.create_index("attempts_run", "attempts", ["run_id", "number"])


def _small_tables() -> None:
    op.create_table("nodes", text("id", primary_key=True), big("position"), text("body"), big("sum"))
    op.create_table("settings", text("key", primary_key=True), text("body"), big("sum"))
    op.create_table("usage", text("user", primary_key=True), real("gpu_s"), real("at"), big("sum"))
    op.create_table(
        "keys",
        text("principal", primary_key=True),
        text("key", primary_key=True),
        text("digest"),
        text("run_id"),
        real("at"),
    )
    op.create_index("keys_at", "keys", ["at"])


def _first_rows() -> None:
    """Epoch 0, an empty log, everything at its default. The sums are CRC-32s, see rows.checksum."""
    head = sa.table("head", *map(sa.column, ("id", "epoch", "version", "at", "next_seq", "live", "sum")))
    op.bulk_insert(head, [{"id": 1, "epoch": 0, "version": 0, "at": 0.0, "next_seq": 1, "live": 0, "sum": HEAD_SUM}])
    settings = sa.table("settings", *map(sa.column, ("key", "body", "sum")))
    op.bulk_insert(settings, [{"key": key, "body": body, "sum": sum_} for key, body, sum_ in SETTINGS])
