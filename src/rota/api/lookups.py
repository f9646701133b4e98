"""Short looks into the store on behalf of routes that change something, in threads of their own.

The threads of asyncio.to_thread are everybody's: whatever takes long in them would keep each stop, hold and rerun
waiting. Here one caller has a few of the threads, so that others always find one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rota.api.house import House
from rota.app.authz import Principal

P = ParamSpec("P")
T = TypeVar("T")


async def look_up(house: House, who: Principal, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return what `work` returns. Raises Unavailable where that takes too long, or where too many wait already."""
    return await house.lookups.read(who.name, lambda: work(*args, **named))
