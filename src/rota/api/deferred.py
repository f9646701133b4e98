"""What a start does not wait for: models are imported without being built, and some libraries are loaded after it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Thread

from pydantic import BaseModel, ConfigDict
from pydantic.warnings import UnsupportedFieldAttributeWarning

# Loaded by the first requests, on the event loop's thread, unless they are there by then.
LATER = ("anyio._backends._asyncio", "anyio.streams.stapled", "pydantic.v1", "rota.api.render.prometheus")
log = logging.getLogger(__name__)


def load_later_ones(then: Callable[[], None]) -> None:
    """Load, in a thread, what requests need and the first answer does not, and do `then`. Else a request would, and an
    account that holds the lock of a directory of the library (docs/security.md) at that moment would hold the event
    loop as well."""
    try:
        Thread(target=_load, args=[then], name="rota-imports", daemon=True).start()
    except RuntimeError as error:  # at the limit of processes: requests load them
        log.warning("what requests need is not loaded ahead: %s", error)


def _load(then: Callable[[], None]) -> None:
    then()
    for name in LATER:
        try:
            import_module(name)
        except Exception:  # whatever it is, the request that needs the module raises it where it is answered
            log.exception("%s cannot be loaded", name)


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
