"""Alembic's entry: works on the connection, and inside the transaction, that `open.migrate` passes in."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
