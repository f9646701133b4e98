"""What a run asks for and what it is given.

GPU numbers of one node are kept as bits of an int (bit i = GPU i): free, held and unfit GPUs then combine with `& | ~`,
counts are `int.bit_count()`, and a copy of the whole cluster is a copy of a list of ints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_GPUS_PER_NODE = 64


@dataclass(frozen=True, slots=True)
class Request:
    """The shape of a run. Runs of one shape are interchangeable to the placer."""

    gpus: int = 1  # in all; 0 is a run that needs no GPU
    nodes: int = 0  # spread evenly over exactly so many nodes; 0 = one node, or as few as hold it
    gpu_memory_gb: float = 0.0  # at least, per GPU
    gpu_type: str = ""  # a substring of the GPU's name, compared without case; "" = any
    cpus: int = 0  # per node; 0 = not counted
    memory_gb: float = 0.0  # host memory per node; 0 = not counted
    span: bool = False  # may be split over nodes when no single node has room


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one node: what one process of an attempt may use."""

    node: str
    gpus: int  # bits
    cpus: int = 0
    memory_gb: float = 0.0


Placement = tuple[Slice, ...]


def bits(mask: int) -> Iterator[int]:
    """The set positions of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(indices: Iterable[int]) -> int:
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


def lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask."""
    if mask.bit_count() == count:
        return mask
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken


def gpu_count(placement: Placement) -> int:
    return sum(part.gpus.bit_count() for part in placement)
