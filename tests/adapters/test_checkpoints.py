"""How much the checkpoints of each run use: by blocks, never through a link, in bounded rounds."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.adapters import checkpoints as module
from rota.adapters import looks, remover, tree_size
from rota.adapters.checkpoints import CheckpointFiles
from tests.app.house import until

ONE, TWO, THREE = "00000000000a", "00000000000b", "00000000000c"
MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "checkpoints"
    path.mkdir()
    yield path
    # pytest's own removal of old directories recurses, and ends with a traceback on trees as deep as some are here
    subprocess.run(["rm", "-rf", "--", path], check=True)


def test_what_is_used_and_not_what_is_said(root: Path) -> None:
    assert list(CheckpointFiles(root / "none").sizes()) == []
    deep = root / ONE / "step 1" / "model"
    deep.mkdir(parents=True)
    (deep / "weights").write_bytes(os.urandom(MIB))
    (root / TWO).mkdir()
    with (root / TWO / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (root / "notes.txt").write_bytes(os.urandom(MIB))
    sizes = dict(CheckpointFiles(root).sizes())
    assert set(sizes) == {ONE, TWO}
    assert MIB <= (sizes[ONE] or 0) < 2 * MIB
    assert (sizes[TWO] or 0) < MIB, "a hole takes no room"


def test_an_empty_file_counts_for_its_inode(root: Path) -> None:
    (root / ONE).mkdir()
    for number in range(100):
        (root / ONE / str(number)).touch()
    assert (dict(CheckpointFiles(root).sizes())[ONE] or 0) >= 100 * 4096


def test_a_link_leads_nowhere(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(os.urandom(2 * MIB))
    (root / ONE).mkdir()
    (root / ONE / "folder").symlink_to(elsewhere)
    (root / ONE / "file").symlink_to(elsewhere / "large")
    (root / TWO).symlink_to(elsewhere)
    sizes = dict(CheckpointFiles(root).sizes())
    assert (sizes[ONE] or 0) < MIB and sizes[TWO] == 0


def deep_tree(path: Path, depth: int, below: bytes = b"") -> None:
    """By descriptors: the whole path may be longer than a path can be."""
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        fd, before = os.open("d", os.O_RDONLY, dir_fd=fd), fd
        os.close(before)
    if below:
        with open(os.open("weights", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "wb") as file:
            file.write(below)
    os.close(fd)


def test_a_tree_deeper_than_the_stack_is_removed_and_stops_nothing(root: Path) -> None:
    """The removal recurses, and a job may nest directories as deeply as it likes."""
    deep_tree(root / ONE, 2 * sys.getrecursionlimit())
    (root / TWO).mkdir()
    for name in (ONE, TWO):
        os.utime(root / name, (1000, 1000))
    assert CheckpointFiles(root).purge(2000.0, lambda run_id: True) == 2
    assert os.listdir(root) == []


@pytest.mark.parametrize("depth", [60, 2 * sys.getrecursionlimit()])
def test_what_lies_very_deep_counts_and_costs_one_descriptor(root: Path, depth: int) -> None:
    deep_tree(root / ONE, depth, os.urandom(MIB))
    held = len(os.listdir("/proc/self/fd"))
    with few_descriptors(held + 10):
        assert (dict(CheckpointFiles(root).sizes())[ONE] or 0) >= MIB
    assert len(os.listdir("/proc/self/fd")) <= held


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many(path: Path, count: int) -> None:
    """Folders with a file each."""
    for number in range(count):
        (path / f"{number:04}").mkdir(parents=True)
        (path / f"{number:04}" / "part").write_bytes(b"x")


def test_what_is_too_much_for_a_round_is_measured_in_several(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALKED", 100)
    monkeypatch.setattr(tree_size, "BATCH", 16)
    many(root / ONE, 300)
    (root / ONE / "zzzz").write_bytes(os.urandom(4 * MIB))
    files = CheckpointFiles(root)
    seen = [dict(files.sizes())[ONE] or 0 for _ in range(20)]
    assert seen[0] < MIB
    assert seen[-1] == max(seen) >= 4 * MIB, "once it was whole it counts as much, also while it is measured again"
    assert seen == sorted(seen)
    monkeypatch.undo()
    (root / ONE / "zzzz").unlink()
    assert [(dict(files.sizes())[ONE] or 0) < 4 * MIB for _ in range(2)][-1], "until the next whole measure"


def test_a_large_run_does_not_keep_others_from_being_measured(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALKED", 100)
    many(root / ONE, 300)
    many(root / TWO, 5)
    files = CheckpointFiles(root)
    assert dict(files.sizes())[TWO] is None
    assert dict(files.sizes())[TWO] is not None


def test_what_is_moved_between_two_rounds_is_measured_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALKED", 100)
    many(root / ONE / "a" / "b", 150)
    (root / ONE / "weights").write_bytes(os.urandom(MIB))
    files = CheckpointFiles(root)
    assert (dict(files.sizes())[ONE] or 0) < MIB
    (root / ONE / "a").rename(root / ONE / "c")
    (root / ONE / "a").symlink_to("/")
    rounds = [dict(files.sizes())[ONE] or 0 for _ in range(10)]
    assert rounds[-1] >= MIB and rounds == sorted(rounds)


def test_a_round_is_bounded_and_the_next_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALKED", 12)
    for name in (ONE, TWO, THREE):
        (root / name).mkdir()
        for number in range(8):
            (root / name / str(number)).write_bytes(b"x")
    files = CheckpointFiles(root)
    rounds = [{name for name, size in files.sizes() if size is not None} for _ in range(3)]
    assert all(len(measured) < 3 for measured in rounds)
    assert set.union(*rounds) == {ONE, TWO, THREE}


def test_an_owner_cannot_keep_checkpoints_for_ever_by_a_time_in_the_future(root: Path) -> None:
    (root / ONE).mkdir()
    os.utime(root / ONE, (4e9, 4e9))
    now = (root / ONE).stat().st_ctime
    assert CheckpointFiles(root).purge(now - 1, lambda run_id: True) == 0, "it is young"
    assert CheckpointFiles(root).purge(now + 1, lambda run_id: True) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of several accounts")
def test_what_belongs_to_others_stays(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An account can move a directory of its own into its checkpoints, with those of others in it. It could not remove
    these, and root does not do it for them."""
    ann, bob, container, files = 1_234_567, 1_234_568, 2_000_005, {}

    def made(name: str, *owners: int) -> Path:
        path = root / name
        for number, owner in enumerate(owners):
            path /= str(number) if number else ""
            path.mkdir()
            (path / "file").write_text("x")
            for each in (path, path / "file"):
                os.chown(each, owner, owner)
        os.utime(root / name, (1000, 1000))
        files[name] = path / "file"
        return path

    made(ONE, ann, ann, container, ann, container).parent.chmod(0)  # to be opened by root alone
    made(TWO, ann, ann, ann, bob)
    (root / TWO / "1" / "2" / "bobs").write_text("x")  # in a directory of hers
    os.chown(root / TWO / "1" / "2" / "bobs", bob, bob)
    os.mkdir(root / TWO / "empty")
    os.chown(root / TWO / "empty", bob, bob)
    made(THREE, 0, bob)
    ranges = {ann: [(2_000_000, 2_000_010)]}
    assert CheckpointFiles(root, lambda uid: ranges.get(uid, [])).purge(2e3 + 5e9, lambda run_id: True) == 2
    (stays,) = root.iterdir()  # hers with her subordinate ids' went, and what an admin's run has left
    assert stays.name.startswith(TWO)
    left = [path for path in stays.rglob("*") if path.is_file()]
    assert [(path.name, path.parent.name, path.stat().st_uid) for path in left] == [("file", "3", bob)]
    assert f"it is a directory of account {bob}: '{root}" in caplog.text
    assert CheckpointFiles(root).purge(5e9, lambda run_id: True) == 0
    os.chown(left[0].parent, ann, ann)
    assert CheckpointFiles(root).purge(5e9, lambda run_id: True) == 1


def test_a_removal_that_was_cut_short_goes_on_in_the_next_round(root: Path) -> None:
    """What it has removed by then makes the directory look young."""
    many(root / ONE / "deep", 50)
    os.utime(root / ONE, (1000, 1000))
    begun = remover.Remover(str(root / ONE), ())
    real, left = os.rename, 3

    def rename(*args: Any, **places: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt  # as a signal would
        real(*args, **places)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            begun.remove()
    (young,) = root.iterdir()
    assert young.stat().st_mtime > 1000 and sum(path.is_file() for path in young.rglob("*")) == 50
    files = CheckpointFiles(root)
    assert dict(files.sizes()) == {}
    assert files.purge(2000.0, lambda run_id: False) == 1
    assert os.listdir(root) == []


def test_what_stays_takes_no_turns_from_what_can_go(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    for number in range(6):
        (root / f"{number:012x}{remover.TO_GO}{number:08x}").mkdir()
    tried = list[str]()

    def remove(files: CheckpointFiles, path: str) -> bool:
        tried.append(Path(path).name)
        return False

    monkeypatch.setattr(CheckpointFiles, "_remove", remove)
    for name in (ONE, TWO):
        (root / name).mkdir()
        os.utime(root / name, (1000, 1000))
    assert CheckpointFiles(root).purge(5e9, lambda run_id: True) == 0
    assert set(tried) == {ONE, TWO}


def test_a_directory_that_cannot_be_moved_up_is_emptied_where_it_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of a project refuses that as if it were another file system."""
    for name, depth in ((ONE, remover.MOST_NESTED // 2), (TWO, 2 * remover.MOST_NESTED)):
        deep_tree(root / name, depth, b"x")
    real = os.rename

    def rename(source: str, to: str, **places: Any) -> None:
        if remover.TO_GO not in to:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, to, **places)

    monkeypatch.setattr(os, "rename", rename)
    removers = {name: remover.Remover(str(root / name), ()) for name in (ONE, TWO)}
    for each in removers.values():
        each.remove()
    assert removers[ONE].left == []
    assert [path.name[: len(TWO)] for path in root.iterdir()] == [TWO]
    assert "Invalid cross-device link: '" in removers[TWO].left[0] and len(removers[TWO].left[0]) < 300


def test_checkpoints_on_another_disk_are_removed_there(root: Path) -> None:
    (root / "disk" / ONE).mkdir(parents=True)
    (root / "checkpoints").symlink_to("disk")
    assert CheckpointFiles(root / "checkpoints").purge(5e9, lambda run_id: True) == 1
    assert os.listdir(root / "disk") == []


def test_a_name_that_cannot_be_found_ends_a_removal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a damaged file system."""
    (root / ONE).mkdir()
    (root / ONE / "file").touch()

    def unlink(name: str, **places: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "unlink", unlink)
    removal = remover.Remover(str(root / ONE), ())
    removal.remove()
    (why,) = removal.left
    assert why.startswith("it is there again, or cannot be found: '")


def test_no_link_is_followed_and_no_name_is_too_odd_for_a_removal(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    (root / ONE / "deep" / "er").mkdir(parents=True)
    for place in (root / ONE, root / ONE / "deep", root / ONE / "deep" / "er"):
        (place / "to a folder").symlink_to(elsewhere)
        (place / "to a file").symlink_to(elsewhere / "file")
        (place / "to nothing").symlink_to(elsewhere / "gone")
        for name in (b"\xff", b"-rf", b"new\nline", b".."[:1] + b"hidden"):
            Path(os.fsdecode(os.fsencode(place) + b"/" + name)).touch()
        os.mkfifo(place / "pipe")
    os.utime(root / ONE, (1000, 1000))
    assert CheckpointFiles(root).purge(5e9, lambda run_id: True) == 1
    assert (os.listdir(root), os.listdir(elsewhere)) == ([], ["file"])


class SlowRemoval:
    """A removal that is not done in time, and that ends when it is killed only if it `dies`."""

    returncode, stderr = None, None

    def __init__(self, *, dies: bool) -> None:
        self.dies, self.killed = dies, False

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        assert timeout is not None
        raise subprocess.TimeoutExpired("remover", timeout)

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None and self.killed
        if not self.dies:
            raise subprocess.TimeoutExpired("remover", timeout)
        return -9

    def poll(self) -> int | None:
        return -9 if self.dies else None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[SlowRemoval]]:
    """For each run that is in it, the removals that were started and are not done in time."""
    started: dict[str, list[SlowRemoval]] = {}
    real = subprocess.Popen

    def start(argv: list[str], **options: Any) -> Any:
        name = Path(argv[-1]).name
        if name not in started:
            return real(argv, **options)
        started[name].append(SlowRemoval(dies=False))
        return started[name][-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def test_a_removal_that_does_not_even_end_when_killed_stops_no_other_and_is_not_started_twice(
    root: Path, slow: dict[str, list[SlowRemoval]]
) -> None:
    for name in (ONE, TWO, THREE):
        (root / name).mkdir()
    slow[TWO], files = [], CheckpointFiles(root)
    assert files.purge(5e9, lambda run_id: True) == 2
    assert [path.name for path in root.iterdir()] == [TWO]
    assert [one.killed for one in slow[TWO]] == [True]
    assert files.purge(5e9, lambda run_id: True) == 0
    assert len(slow[TWO]) == 1, "the first one lives"
    slow[TWO][0].dies = True
    assert files.purge(5e9, lambda run_id: True) == 0
    assert len(slow[TWO]) == 2
    slow.clear()
    assert files.purge(5e9, lambda run_id: True) == 0, "the second one lives"


def test_a_tree_that_takes_too_long_to_remove_is_tried_again(root: Path, slow: dict[str, list[SlowRemoval]]) -> None:
    (root / ONE).mkdir()
    slow[ONE], files = [], CheckpointFiles(root)
    assert files.purge(5e9, lambda run_id: True) == 0
    slow.pop(ONE)[0].dies = True
    assert files.purge(5e9, lambda run_id: True) == 1


def test_a_round_ends_with_a_number_of_removals_that_do_not_end(
    root: Path, slow: dict[str, list[SlowRemoval]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_STUCK", 2)
    for name in (ONE, TWO, THREE):
        (root / name).mkdir()
        slow[name] = []
    files = CheckpointFiles(root)
    for _ in range(2):
        assert files.purge(5e9, lambda run_id: True) == 0
        assert sum(map(len, slow.values())) == 2


def long_names(path: Path, levels: int, count: int) -> None:
    """Directories in each other, each with so many links to one file. A name that is no UTF-8 and has one letter of
    four bytes takes Python a kilobyte as text."""
    path.mkdir()
    where = os.fsencode(path)
    for _ in range(levels):
        first = where + b"/" + b"\xf0\x9f\x98\x80" + b"\xff" * 240
        with open(first, "xb"):
            pass
        for number in range(1, count):
            os.link(first, first + b"%05d" % number)
        where += b"/!"
        os.mkdir(where)


def test_names_that_cost_their_owner_nothing_take_little_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_size, "MOST_KEPT", 1 << 20, raising=False)
    long_names(root / ONE, 6, 3000)
    with peak_memory() as peak:
        size = dict(CheckpointFiles(root).sizes())[ONE] or 0
    assert size >= 6 * 3000 * 4096, "each was looked at"
    assert peak() < 6 * MIB, "all of them together are 18 MB"
    with peak_memory() as peak:
        assert CheckpointFiles(root).purge(5e9, lambda run_id: True) == 1
    assert peak() < MIB
    assert os.listdir(root) == []


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Give a function that tells the most bytes that Python's objects had at a time within."""
    found = 0
    tracemalloc.start()
    try:
        yield lambda: found
        found = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_directories_that_were_forgotten_on_the_way_are_gone_on_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(4):
        many(root / ONE / f"{first}", 20)
    whole = dict(CheckpointFiles(root).sizes())[ONE]
    monkeypatch.setattr(tree_size, "MOST_KEPT", 100)
    monkeypatch.setattr(tree_size, "BATCH", 7)
    assert dict(CheckpointFiles(root).sizes())[ONE] == whole
    monkeypatch.setattr(module, "WALKED", 90)
    files = CheckpointFiles(root)
    assert [dict(files.sizes())[ONE] for _ in range(20)][-1] == whole


class Held:
    """Directories that cannot be listed until they are let go, and each try. A look ends in time unless it waits for
    one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[str] = []
        self.locks: dict[str, threading.Event] = {}
        self.given_up = 0  # tries
        real = os.scandir

        def scandir(path: Any) -> Any:
            lock = self.locks.get(str(path))
            if lock is not None:
                self.tried.append(str(path))
                lock.wait(60)
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        monkeypatch.setattr(looks, "wait", self.wait)

    def wait(self, looks: list[Future[Any]], timeout: float) -> None:
        until(lambda: looks[0].done() or len(self.tried) > self.given_up, "the look has ended, or is held")
        self.given_up = len(self.tried)

    def hold(self, path: Path) -> None:
        self.locks[str(path)] = threading.Event()

    def let_go(self) -> None:
        for lock in self.locks.values():
            lock.set()
        self.locks = {}
        # so that whatever looks has ended
        for thread in threading.enumerate():
            if thread.name.startswith(("rota-purge-look", "rota-measure-look", "rota-list")):
                thread.join(60)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.let_go()


def of(account: Path, run_id: str) -> Path:
    path = account / run_id
    path.mkdir(parents=True)
    (path / "weights").write_bytes(os.urandom(MIB))
    os.utime(path, (1000, 1000))
    return path


def test_an_account_that_holds_its_directory_stops_no_removal_but_of_its_own(root: Path, held: Held) -> None:
    ann, mallory, zoe = (of(root / f"of-{name}", run) for name, run in (("ann", ONE), ("mallory", TWO), ("zoe", THREE)))
    files = CheckpointFiles(root)
    held.hold(mallory.parent)
    assert files.purge(5e9, lambda run_id: True) == 2
    assert [path.exists() for path in (ann, mallory, zoe)] == [False, True, False]
    again = of(zoe.parent, THREE)
    assert files.purge(5e9, lambda run_id: True) == 1
    assert not again.exists()
    assert held.tried == [str(mallory.parent)], "the first look still waits"
    held.let_go()
    assert not mallory.exists()
    of(zoe.parent, THREE)
    assert files.purge(5e9, lambda run_id: True) == 2, "and the one that went late"


def test_an_account_that_holds_its_directory_stops_no_measuring_but_of_its_own(root: Path, held: Held) -> None:
    of(root / "of-ann", ONE)
    mallory, zoe = of(root / "of-mallory", TWO), of(root / "of-zoe", THREE)
    files = CheckpointFiles(root)
    before = dict(files.sizes())
    assert all(MIB <= (before[name] or 0) < 2 * MIB for name in (ONE, TWO, THREE))
    held.hold(mallory.parent)
    for number in range(2):
        (zoe / f"{number}").write_bytes(os.urandom(MIB))
        sizes = dict(files.sizes())
        assert (sizes[ONE], sizes[TWO]) == (before[ONE], None), "what is not measured is not gone"
        assert (sizes[THREE] or 0) >= (2 + number) * MIB
    assert held.tried == [str(mallory.parent)]
    held.let_go()
    assert dict(files.sizes())[TWO] == before[TWO]


def test_those_who_hold_directories_cost_a_bounded_number_of_threads(
    root: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PURGED", 2)
    paths = [of(root / f"of-{number}", f"{number:012x}") for number in range(4)]
    files = CheckpointFiles(root)
    for path in paths:
        held.hold(path.parent)
    for _ in range(2):
        assert files.purge(5e9, lambda run_id: True) == 0
        assert held.tried == [str(path.parent) for path in paths[:2]]
    held.let_go()
    assert files.purge(5e9, lambda run_id: True) == 4


def test_where_the_directory_of_all_is_held_those_of_accounts_are_looked_at(root: Path, held: Held) -> None:
    ann, files = of(root / "of-ann", ONE), CheckpointFiles(root)
    whole = dict(files.sizes())
    held.hold(root)
    assert dict(files.sizes()) == whole
    assert files.purge(5e9, lambda run_id: True) == 1
    assert not ann.exists()


def test_a_directory_that_cannot_be_listed_stops_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(root / "of-ann", ONE)
    of(root / "of-zoe", THREE)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("of-ann"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    files = CheckpointFiles(root)
    assert files.purge(5e9, lambda run_id: True) == 1
    monkeypatch.undo()
    assert files.purge(5e9, lambda run_id: True) == 1
