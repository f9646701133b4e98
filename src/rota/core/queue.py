"""The waiting runs that could start now, kept in order as they come and go.

A lane holds the runs of one user, one shape, one group and one band (core/order.py), sorted. Within a lane runs are
alike to the placer and to the limits, so a pass that finds a lane's first run unplaceable needs to look at no other run
of that shape.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

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


class Queue:
    def __init__(self) -> None:
        self._lanes: dict[Place, Lane] = {}
        self._where: dict[str, tuple[Place, Key]] = {}  # no lanes in it: then a copy is quick
        self._shapes: dict[Request, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._where

    def lanes(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def add(self, run_id: str, place: Place, key: Key) -> None:
        lane = self._lanes.get(place)
        if lane is None:
            shape = self._shapes.setdefault(place[1], len(self._shapes))
            lane = self._lanes[place] = Lane(place, shape, [])
        if not lane.runs or key > lane.runs[-1][0]:
            lane.runs.append((key, run_id))
        else:
            insort(lane.runs, (key, run_id))
        self._where[run_id] = (lane.place, key)

    def remove(self, run_id: str) -> None:
        place, key = self._where.pop(run_id)
        lane = self._lanes[place]
        at = bisect_left(lane.runs, (key, run_id))
        del lane.runs[at]
        if not lane.runs:
            del self._lanes[place]
            if not self._lanes:
                self._shapes.clear()  # shapes come from users: do not remember them for ever

    def copy(self) -> Queue:
        twin = Queue()
        twin._shapes = dict(self._shapes)
        for place, lane in self._lanes.items():
            twin._lanes[place] = Lane(place, lane.shape, lane.runs.copy())
        twin._where = dict(self._where)
        return twin

    def instead(self, run_id: str, request: Request, key: Key) -> Queue:
        """As if one run stood elsewhere: a view for one decision. Everything else is shared, so it costs little."""
        place, was = self._where[run_id]
        old = self._lanes[place]
        view = Queue()
        view._where, view._shapes = self._where, {**self._shapes}
        view._lanes = dict(self._lanes)
        rest = [entry for entry in old.runs if entry != (was, run_id)]
        view._lanes[place] = Lane(place, old.shape, rest)
        there = (old.user, request, old.group, old.band)
        new = view._lanes.get(there)
        shape = view._shapes.setdefault(request, len(view._shapes))
        runs = sorted([*(new.runs if new else ()), (key, run_id)])
        view._lanes[there] = Lane(there, shape, runs)
        if not rest and request != old.request:
            del view._lanes[place]
        return view

    def lane_of(self, run_id: str) -> Lane:
        return self._lanes[self._where[run_id][0]]

    def key_of(self, run_id: str) -> Key:
        return self._where[run_id][1]

    def entries(self) -> Iterator[tuple[Lane, Key, str]]:
        for run_id, (place, key) in self._where.items():
            yield self._lanes[place], key, run_id
