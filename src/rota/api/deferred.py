"""Importing models without building them: a start would wait for what most requests never use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict
from pydantic.warnings import UnsupportedFieldAttributeWarning


@contextmanager
def deferred_models() -> Iterator[None]:
    """Let the models that are declared meanwhile, FastAPI's own too, build their validators when they are first used.

    All of them are used on the event loop's thread, or only by the thread that makes the API document, so that none is
    built by two threads at a time."""
    # FastAPI wraps a body's model in an annotation that pydantic warns of, and mutes that only where it declares the
    # body. The model is built later.
    warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(**before, defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = before
