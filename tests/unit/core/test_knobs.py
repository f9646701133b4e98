from __future__ import annotations

from rota.core.knobs import ABOUT
from rota.core.policy import Backfill, Ordering, Packing


def test_every_choice_is_named() -> None:
    for word, choices in (("scheduling_algorithm", Ordering), ("backfill", Backfill), ("packing", Packing)):
        listed = ABOUT[word].partition(":")[2].replace(" or", ",").strip(" .").split(", ")
        assert listed == [choice.value for choice in choices]
