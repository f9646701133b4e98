"""Groups and archived runs, the doors' records, caps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

CAPS = ("caps", "{}", 2445800373)


def partial(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "runs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    # with constant defaults neither database rewrites a row
    op.add_column("runs", sa.Column("grp", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("archived", sa.Integer, nullable=False, server_default=sa.text("0")))
    partial("runs_grp", ["grp", "seq"], "grp <> ''")
    partial("runs_archived", ["seq"], "archived = 1")
    op.create_table(
        "records",
        sa.Column("kind", sa.Text, primary_key=True, nullable=False),
        sa.Column("id", sa.Text, primary_key=True, nullable=False),
        sa.Column("parent", sa.Text, nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("sum", BIG, nullable=False),
    )
    op.create_index("records_kind", "records", ["kind", "seq"])
    op.create_index("records_parent", "records", ["parent", "kind", "seq"])
    settings = sa.table("settings", *map(sa.column, ("key", "body", "sum")))
    op.bulk_insert(settings, [dict(zip(("key", "body", "sum"), CAPS, strict=True))])
