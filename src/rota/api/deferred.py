"""Importing models without building them: a start would wait for what most requests never use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict


@contextmanager
def deferred_models() -> Iterator[None]:
    """Let the models that are declared meanwhile, FastAPI's own too, build their validators when they are first used.

    All of them are used on the event loop's thread, so that none is built by two threads at a time."""
    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(**before, defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = before
