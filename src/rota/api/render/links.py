"""Where else a run can be looked at: what W&B, MLflow and TensorBoard said in its log.

Who writes the log may want the search to be long. So it is one of plain words first; patterns are tried at what was
found, a bounded number of times, and never go back over what they have matched. The result of a tail is kept.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

TAIL_BYTES = 65536
MOST = 10
MOST_TRIED = 500  # places of a tail where a pattern is tried, of each kind
MOST_KEPT = 256  # tails
LONGEST_START = 200  # of a link, up to the words by which it is known

# Bytes above 127 are letters of other languages. `++` and the like do not give back what they took.
WANDB = re.compile(rb"https?://([\w.\x80-\xff-]{1,205}+)(?::\d{1,5}+)?+/[\w./%~@?=&+\x80-\xff-]{1,300}+")
MLFLOW_WORDS = b"/#/experiments/"
MLFLOW_START = re.compile(rb"https?://[\w.:/%~@\x80-\xff-]{1,200}+")
MLFLOW_END = re.compile(rb"/#/experiments/\d{1,20}+(?:/runs/[0-9a-f]{1,64}+)?+")
TENSORBOARD = re.compile(
    rb"TensorBoard [\w.]{1,20}+ at (https?://[\w.\x80-\xff-]{1,200}+(?::\d{1,5}+)?+/[\w./%\x80-\xff-]{0,100}+)"
)
WANDB_DIR = re.compile(rb"Run data is saved locally in ([^\s\x1b]{1,1000})")


class Found(NamedTuple):
    links: list[dict[str, str]]
    wandb_dir: str | None  # as the log names it


class Kept:
    """What was found in tails that were looked at before, those used last. For any number of threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[bytes, Found] = OrderedDict()

    def search(self, tail: bytes) -> Found:
        key = blake2b(tail, digest_size=16).digest()
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        found = Found(links(tail), _named_dir(tail))
        with self._lock:
            self._found[key] = found
            while len(self._found) > MOST_KEPT:
                self._found.popitem(last=False)
        return found


def links(tail: bytes) -> list[dict[str, str]]:
    found: dict[str, str] = {}
    for kind, urls in (("wandb", _wandb(tail)), ("mlflow", _mlflow(tail)), ("tensorboard", _tensorboard(tail))):
        for url in urls:
            found.setdefault(url.decode("utf-8", "replace"), kind)
            if len(found) >= MOST:
                break
    return [{"kind": kind, "url": url} for url, kind in found.items()]


def wandb_dir(tail: bytes, workdir: str) -> str | None:
    named = _named_dir(tail)
    return None if named is None else in_workdir(named, workdir)


def in_workdir(named: str, workdir: str) -> str:
    return os.path.normpath(os.path.join(workdir, named))


def _named_dir(tail: bytes) -> str | None:
    match = WANDB_DIR.search(tail)
    return None if match is None else match[1].decode("utf-8", "replace")


def _starts(tail: bytes, words: bytes) -> Iterator[tuple[int, int]]:
    """Return where a link may begin that these words belong to, each once, and where the words are."""
    begin = 0
    for _ in range(MOST_TRIED):
        at = tail.find(words, begin)
        if at < 0:
            return
        least = max(0, at - LONGEST_START - len("https://"))
        start = max(tail.rfind(b"http://", least, at), tail.rfind(b"https://", least, at))
        if start >= 0:
            yield start, at
        begin = tail.find(b"http", at)  # before the next one there are only more words of the same link, or of none
        if begin < 0:
            return


def _wandb(tail: bytes) -> Iterator[bytes]:
    for start, _ in _starts(tail, b"wandb"):
        match = WANDB.match(tail, start)
        if match is not None and b"wandb" in match[1]:
            yield match[0]


def _mlflow(tail: bytes) -> Iterator[bytes]:
    for start, at in _starts(tail, MLFLOW_WORDS):
        end = MLFLOW_END.match(tail, at)
        if end is not None and MLFLOW_START.fullmatch(tail, start, at):
            yield tail[start : end.end()]


def _tensorboard(tail: bytes) -> Iterator[bytes]:
    at = -1
    for _ in range(MOST_TRIED):
        at = tail.find(b"TensorBoard ", at + 1)
        match = TENSORBOARD.match(tail, at) if at >= 0 else None
        if match is not None:
            yield match[1]
        if at < 0:
            return
