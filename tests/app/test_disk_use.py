"""What a person's runs take on the disk, while it is measured and while it changes."""

from __future__ import annotations

from collections.abc import Iterator

from rota.app.disk_use import DiskUse


class Walked:
    """Files of runs; `during` happens in the middle of the walk."""

    def __init__(self, **sizes: int) -> None:
        self.there: dict[str, int] = dict(sizes)
        self.during = lambda: None

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        found = list(self.there.items())
        self.during()
        yield from found


def of(files: Walked, asked: list[str], **owners: str) -> DiskUse:
    def owner_of(run_id: str) -> str | None:
        asked.append(run_id)
        return owners.get(run_id)

    return DiskUse(files, owner_of, 1000, what="metrics", frees="wait")


def test_whose_a_run_is_is_asked_once_also_when_nobody_knows() -> None:
    """Files of runs whose records are gone may stay for long, and there may be very many."""
    asked: list[str] = []
    use = of(Walked(a=10, gone=20), asked, a="ann")
    for _ in range(3):
        use.measure()
    assert asked == ["a", "gone"]
    assert use.of("ann") == 10


def test_what_is_forgotten_is_asked_for_again_when_it_is_back() -> None:
    asked: list[str] = []
    files = Walked(gone=20)
    use = of(files, asked)
    for there in ({"gone": 20}, {}, {"gone": 20}):
        files.there = there
        use.measure()
    assert asked == ["gone", "gone"], "nothing is kept of what is not there"


def test_a_run_that_begins_to_write_during_the_walk_counts() -> None:
    files = Walked(a=10, b=5)
    use = of(files, [], a="ann", b="ann")
    use.measure()
    files.there = {"a": 10}
    files.during = lambda: use.note("new", "ann", 40)
    use.measure()
    assert use.of("ann") == 50, "and what went is gone"
