"""The waiting runs that could start now, kept in order as they come and go.

A lane holds the runs of one user, one shape, one group and one band (core/order.py), sorted. Within a lane runs are
alike to the placer and to the limits, so a pass that finds a lane's first run unplaceable needs to look at no other run
of that shape.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from rota.core.order import Band, Key
from rota.core.resources import Request

Place = tuple[str, Request, str, Band]  # user, shape, group, band


class Lane:
    __slots__ = ("band", "group", "place", "request", "runs", "shape", "user")

    def __init__(self, place: Place, shape: int, runs: list[tuple[Key, str]]) -> None:
        self.place = place
        self.user, self.request, self.group, self.band = place
        self.shape = shape  # a number for the request, cheap to compare and to keep in sets
        self.runs = runs  # (key, run id), first is next


class Kind:
    """The lanes of one shape and one band, whoever's they are: a pass that can tell where they stand at best need not
    look at each of them."""

    __slots__ = ("band", "lanes", "number", "oldest", "pace", "request", "shape")

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number  # tells kinds apart
        self.shape, self.request, self.band = lane.shape, lane.request, lane.band
        self.lanes: dict[Place, Lane] = {}
        self.oldest = math.inf  # no run of it has a smaller first part of its key
        self.pace: tuple[float, float] | None = None  # what the ordering found out of the band


class Queue:
    def __init__(self) -> None:
        self._lanes: dict[Place, Lane] = {}
        self._kinds: dict[tuple[int, Band], Kind] = {}
        self._kinds_made = 0
        self._where: dict[str, tuple[Place, Key]] = {}  # no lanes in it: then a copy is quick
        self._shapes: dict[Request, int] = {}  # of the lanes there are: shapes come from users, and never end
        self._lanes_of: dict[int, int] = {}  # shape -> how many
        self._shapes_made = 0

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._where

    def lanes(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def kinds(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def _open(self, lane: Lane) -> None:
        self._lanes[lane.place] = lane
        self._shapes[lane.request] = lane.shape
        self._lanes_of[lane.shape] = self._lanes_of.get(lane.shape, 0) + 1
        kind = self._kinds.get((lane.shape, lane.band))
        if kind is None:
            self._kinds_made += 1
            kind = self._kinds[lane.shape, lane.band] = Kind(self._kinds_made, lane)
        kind.lanes[lane.place] = lane
        if lane.runs:
            kind.oldest = min(kind.oldest, lane.runs[0][0][0])

    def _shut(self, lane: Lane) -> None:
        del self._lanes[lane.place]
        kind = self._kinds[lane.shape, lane.band]
        del kind.lanes[lane.place]
        if not kind.lanes:
            del self._kinds[lane.shape, lane.band]
        self._lanes_of[lane.shape] -= 1
        if not self._lanes_of[lane.shape]:
            del self._lanes_of[lane.shape], self._shapes[lane.request]

    def _shape(self, request: Request) -> int:
        shape = self._shapes.get(request)
        if shape is None:  # a new number: nothing is decided by which
            shape = self._shapes_made = self._shapes_made + 1
        return shape

    def add(self, run_id: str, place: Place, key: Key) -> None:
        lane = self._lanes.get(place)
        if lane is None:
            lane = Lane(place, self._shape(place[1]), [])
            self._open(lane)
        kind = self._kinds[lane.shape, lane.band]
        kind.oldest = min(kind.oldest, key[0])
        if not lane.runs or key > lane.runs[-1][0]:
            lane.runs.append((key, run_id))
        else:
            insort(lane.runs, (key, run_id))
        self._where[run_id] = (lane.place, key)

    def fill(self, entries: Iterable[tuple[str, Place, Key]]) -> None:
        """Add many runs to an empty queue, lane by lane: the place of each is hashed by its identity first."""
        assert not self._where
        found: dict[tuple[str, int, str, Band], tuple[Place, list[tuple[Key, str]]]] = {}
        for run_id, place, key in entries:
            user, request, group, band = place
            lane = found.get((user, id(request), group, band))
            if lane is None:
                lane = found[user, id(request), group, band] = (place, [])
            lane[1].append((key, run_id))
            self._where[run_id] = (lane[0], key)
        for place, runs in found.values():
            if place in self._lanes:  # an equal request that is another object
                for key, run_id in runs:
                    self.add(run_id, place, key)
                continue
            runs.sort()
            self._open(Lane(place, self._shape(place[1]), runs))

    def remove(self, run_id: str) -> None:
        place, key = self._where.pop(run_id)
        lane = self._lanes[place]
        at = bisect_left(lane.runs, (key, run_id))
        del lane.runs[at]
        if not lane.runs:
            self._shut(lane)

    def copy(self) -> Queue:
        twin = Queue()
        twin._shapes_made = self._shapes_made
        for place, lane in self._lanes.items():
            twin._open(Lane(place, lane.shape, lane.runs.copy()))
        twin._where = dict(self._where)
        return twin

    def lane_of(self, run_id: str) -> Lane:
        return self._lanes[self._where[run_id][0]]

    def key_of(self, run_id: str) -> Key:
        return self._where[run_id][1]

    def entries(self) -> Iterator[tuple[Lane, Key, str]]:
        for run_id, (place, key) in self._where.items():
            yield self._lanes[place], key, run_id
