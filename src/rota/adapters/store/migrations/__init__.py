"""Alembic revisions. `open.migrate` runs them on a connection of ours; there is no alembic.ini."""
