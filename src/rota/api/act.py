"""From a door to a command and back."""

from __future__ import annotations

import asyncio
from typing import Any

from rota.api.house import House
from rota.app.authz import Principal
from rota.app.commands import Command


async def act(house: House, who: Principal, command: Command, dry_run: bool = False) -> Any:
    """The answer once it is durable, or Refused. A dry run asks the same handler and writes nothing."""
    send = house.service.try_out if dry_run else house.service.send
    return await asyncio.wrap_future(send(who, command))
