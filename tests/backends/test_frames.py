"""Orders of every length reach their worker: no byte of a frame's length may be taken for its content."""

from __future__ import annotations

from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig


def test_orders_of_every_length(rig: LocalRig, reports: Reports) -> None:
    backend = rig.backend()
    backend.open(reports)
    try:
        lengths = [*range(300), *range(300, 3000, 13), 0x0A0A, 0x0A0000, 0xFFFF, 0x10000]
        orders = [rig.order("succeed", env={"PATH": "/usr/bin:/bin", "P": "x" * length}) for length in lengths]
        for batch in range(0, len(orders), 16):
            backend.launch(*orders[batch : batch + 16])
            for order in orders[batch : batch + 16]:
                end = rig.end_of(reports, order)
                assert end.ok or "too long" in end.message, (len(order.env["P"]), end)
    finally:
        backend.close()
