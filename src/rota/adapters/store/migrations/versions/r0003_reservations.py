"""Reservations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.Text, primary_key=True, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("sum", BIG, nullable=False),
    )
