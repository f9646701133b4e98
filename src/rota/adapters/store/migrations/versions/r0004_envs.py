"""Environments of runs, each stored once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REFERS = "substr(env, 1, 1) = '='"


def upgrade() -> None:
    """Rows that are there keep their environment in place."""
    op.create_table(
        "envs",
        sa.Column("id", sa.Text, primary_key=True, nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("sum", BIG, nullable=False),
    )
    op.create_index("runs_env", "runs", ["env"], sqlite_where=sa.text(REFERS), postgresql_where=sa.text(REFERS))
