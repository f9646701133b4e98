"""Metric rows: kept, bounded, read back thinned."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from pathlib import Path

import pytest

from rota.adapters import samples as module
from rota.adapters.samples import FileSamples

RUN, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture
def samples(tmp_path: Path) -> FileSamples:
    return FileSamples(tmp_path / "metrics")


def test_rows_come_back_as_series_by_step(samples):
    assert samples.series(RUN) == {}
    assert samples.append(RUN, [{"step": 10, "loss": 0.5, "note": "warm"}, {"step": 20, "loss": 0.25, "acc": 1}]) == 2
    assert samples.series(RUN) == {
        "step": ((10.0, 10.0), (20.0, 20.0)),
        "loss": ((10.0, 0.5), (20.0, 0.25)),
        "acc": ((20.0, 1.0),),
    }
    assert samples.series(OTHER) == {}


@pytest.mark.parametrize("word", ["step", "_step", "global_step", "epoch"])
def test_each_usual_word_for_a_step_counts(samples, word):
    samples.append(RUN, [{word: 7, "loss": 1.0}])
    assert samples.series(RUN)["loss"] == ((7.0, 1.0),)


def test_without_a_step_the_row_number_stands_in(samples):
    samples.append(RUN, [{"loss": 3.0}])
    samples.append(RUN, [{"loss": math.nan}, {"loss": 1.0}])
    assert samples.series(RUN)["loss"] == ((0.0, 3.0), (2.0, 1.0)), "a row without a number still counts as a row"


def test_what_is_no_sample_is_left_out_of_its_row(samples):
    row = {"ok": 1.5, "nan": math.nan, "inf": -math.inf, "huge": 10**400, "yes": True, "none": None, "deep": {"a": 1}}
    assert samples.append(RUN, [{**row, "long": "x" * 1001, "k" * 201: 1, "text": "short"}]) == 1
    assert set(samples.series(RUN)) == {"ok"}
    (line,) = (Path(samples._root) / f"{RUN}.jsonl").read_text().splitlines()
    assert json.loads(line) == {"ok": 1.5, "text": "short"}


def test_series_are_thinned_evenly_with_both_ends(samples):
    samples.append(
        RUN, [{"step": n, "loss": float(n), "rare": n} if n % 100 == 0 else {"step": n} for n in range(5000)]
    )
    series = samples.series(RUN)
    assert len(series["step"]) == 400
    assert (series["step"][0], series["step"][-1]) == ((0.0, 0.0), (4999.0, 4999.0))
    gaps = [b[0] - a[0] for a, b in zip(series["step"], series["step"][1:], strict=False)]
    assert max(gaps) - min(gaps) <= 1
    assert len(series["rare"]) == 50, "what is short stays whole"
    assert samples.series(RUN, points=1)["step"] == ((4999.0, 4999.0),)
    assert samples.series(RUN, points=0)["step"] == ()


def test_keys_are_bounded(samples):
    samples.append(RUN, [{f"key{n}": n for n in range(5000)}])
    assert len(samples.series(RUN)) == 200
    assert len(samples.series(RUN, keys=10_000)) == 1000


def test_a_call_and_a_file_have_their_bounds(samples, monkeypatch):
    assert samples.append(RUN, [{"loss": 1}] * 10_001) == 10_000
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 130_000)
    kept = samples.append(RUN, [{"loss": 1}] * 10_000)
    assert 0 < kept < 10_000
    assert (Path(samples._root) / f"{RUN}.jsonl").stat().st_size <= 130_000
    assert samples.append(RUN, [{"loss": 1}]) == 0
    assert samples.append(OTHER, [{"loss": 1}]) == 1, "another run has room of its own"


def test_a_line_torn_by_a_crash_is_skipped_and_spoils_nothing_after_it(samples):
    samples.append(RUN, [{"loss": 1.0}])
    path = Path(samples._root) / f"{RUN}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"loss": 99')
    assert samples.series(RUN)["loss"] == ((0.0, 1.0),)
    samples.append(RUN, [{"loss": 2.0}])
    assert samples.series(RUN)["loss"] == ((0.0, 1.0), (1.0, 2.0))
    assert FileSamples(Path(samples._root)).series(RUN)["loss"] == ((0.0, 1.0), (1.0, 2.0))


def test_the_largest_row_spoils_nothing_after_it(samples):
    samples.append(
        RUN, [{"step": 1, "loss": 1.0, **{f"{n}".ljust(200, "\U0001f600"): "\U0001f600" * 1000 for n in range(990)}}]
    )
    samples.append(RUN, [{"step": 2, "loss": 2.0, "\ud800": 3.0}])
    assert samples.series(RUN)["loss"] == ((1.0, 1.0), (2.0, 2.0))
    assert samples.series(RUN)["\ud800"] == ((2.0, 3.0),)


def test_a_row_that_is_too_long_to_be_read_is_left_out(samples, tmp_path, monkeypatch):
    """Older versions wrote some."""
    monkeypatch.setattr("rota.adapters.samples.CHUNK", 100)
    samples.append(RUN, [{"step": 1, "loss": 1.0}, {"step": 2, "text": "x" * 250}, {"step": 3, "loss": 3.0}])
    assert samples.series(RUN)["loss"] == ((1.0, 1.0), (3.0, 3.0))


def test_files_are_private_and_named_by_run_alone(samples):
    samples.append(RUN, [{"loss": 1.0}])
    assert stat.S_IMODE(os.stat(Path(samples._root) / f"{RUN}.jsonl").st_mode) == 0o600
    for wrong in ("../../etc/pwd", "", "0123456789AB", f"{RUN}\n", f"{RUN}/..", "0123456789abc"):
        with pytest.raises(ValueError, match="run id"):
            samples.append(wrong, [{"loss": 1}])
        with pytest.raises(ValueError, match="run id"):
            samples.series(wrong)


def test_writers_at_once_do_not_mix_their_lines(samples):
    def write(n: int) -> None:
        for _ in range(20):
            samples.append(RUN, [{"step": n, f"from{n}": 1.0}] * 10)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    series = samples.series(RUN, points=10_000)
    assert [len(series[f"from{n}"]) for n in range(4)] == [200] * 4


def test_a_long_history_is_read_once(samples, monkeypatch):
    for begin in range(0, 100_000, 10_000):
        samples.append(RUN, [{"step": begin + n, "loss": 1.0} for n in range(10_000)])
    samples.series(RUN)
    taken: list[bytes] = []
    real = module._Read.take

    def take(self: module._Read, chunk: bytes) -> bool:
        taken.append(chunk)
        return real(self, chunk)

    monkeypatch.setattr(module._Read, "take", take)
    samples.append(RUN, [{"step": 100_000, "loss": 0.5}])
    assert samples.series(RUN)["loss"][-1] == (100_000.0, 0.5)
    assert b"".join(taken) == b'{"step": 100000, "loss": 0.5}\n', "only what was added is read"


def test_few_runs_are_kept_at_hand(samples, monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    for n in range(10):
        samples.append(f"{n:012x}", [{"loss": n}])
        assert samples.series(f"{n:012x}")["loss"] == ((0.0, float(n)),)
    assert len(samples._read) == 3
    assert samples.series(f"{0:012x}")["loss"] == ((0.0, 0.0),), "and what was dropped is read again"


def test_metrics_go_with_their_run(samples, tmp_path):
    old, kept, young = RUN, OTHER, "aaaaaaaaaaaa"
    for run_id in (old, kept, young):
        samples.append(run_id, [{"loss": 1.0}])
        samples.series(run_id)
    for run_id in (old, kept):
        os.utime(tmp_path / "metrics" / f"{run_id}.jsonl", (1000, 1000))
    (tmp_path / "metrics" / "notes.txt").write_text("not ours to remove")
    asked = []

    def gone(run_id):
        asked.append(run_id)
        return run_id == old

    assert samples.purge(2000.0, gone) == 1
    assert sorted(asked) == [old, kept], "only those nobody added to for long are asked about"
    assert samples.series(old) == {}
    assert samples.series(kept)
    assert samples.series(young)
    assert sorted(os.listdir(tmp_path / "metrics")) == sorted(["notes.txt", f"{kept}.jsonl", f"{young}.jsonl"])


def test_who_reads_a_long_file_keeps_nobody_else_waiting(samples, monkeypatch):
    samples.append(RUN, [{"loss": 1.0}])
    samples.append(OTHER, [{"loss": 2.0}])
    take, begun, done = module._Read.take, threading.Event(), threading.Event()

    def slowly(self, chunk):
        if b"1.0" in chunk:
            begun.set()
            assert done.wait(60)
        return take(self, chunk)

    monkeypatch.setattr(module._Read, "take", slowly)
    reader = threading.Thread(target=samples.series, args=(RUN,))
    reader.start()
    try:
        assert begun.wait(60)
        found = []
        other = threading.Thread(target=lambda: found.append(samples.series(OTHER)))
        other.start()
        other.join(60)
        assert found == [{"loss": ((0.0, 2.0),)}]
    finally:
        done.set()
        reader.join(60)
    assert samples.series(RUN) == {"loss": ((0.0, 1.0),)}


def test_a_file_is_read_in_pieces_and_what_is_kept_is_bounded(samples, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    for n in range(10):
        samples.append(f"{n:012x}", [{"step": k, "loss": float(k)} for k in range(50)])
        assert len(samples.series(f"{n:012x}")["loss"]) == 50
        assert len(samples._read) <= 3
    monkeypatch.setattr(module, "MAX_CACHED_VALUES", 150)
    samples.series(f"{9:012x}")
    assert len(samples._read) == 1


@pytest.fixture
def parsed(monkeypatch) -> list[int]:
    """How many bytes of samples each piece had that was parsed."""
    pieces: list[int] = []
    take = module._Read.take

    def counted(self, chunk):
        pieces.append(len(chunk))
        return take(self, chunk)

    monkeypatch.setattr(module._Read, "take", counted)
    return pieces


def test_a_series_larger_than_all_that_is_kept_outlives_reads_of_others(samples, monkeypatch, parsed):
    monkeypatch.setattr(module, "MAX_CACHED_VALUES", 50)
    samples.append(RUN, [{"loss": float(n)} for n in range(100)])
    samples.append(OTHER, [{"loss": 1.0}])
    for run_id in (RUN, OTHER, RUN, OTHER):
        samples.series(run_id)
    assert len(parsed) == 2, "each was parsed once"
    samples.append("a" * 12, [{"loss": float(n)} for n in range(100)])
    samples.series("a" * 12)
    assert RUN not in samples._read, "of such large ones one is kept"


def test_who_reads_what_is_being_parsed_waits_for_that(samples, monkeypatch, parsed):
    monkeypatch.setattr(module, "CHUNK", 200)
    monkeypatch.setattr(module, "MAX_CACHED", 1)
    samples.append(RUN, [{"loss": float(n)} for n in range(100)])
    samples.append(OTHER, [{"other": 1.0}])
    take, begun, done = module._Read.take, threading.Event(), threading.Event()

    def slowly(self, chunk):
        whole = take(self, chunk)
        if b"loss" in chunk:
            begun.set()
            assert done.wait(60)
        return whole

    monkeypatch.setattr(module._Read, "take", slowly)
    found = []
    readers = [threading.Thread(target=lambda: found.append(samples.series(RUN))) for _ in range(2)]
    readers[0].start()
    try:
        assert begun.wait(60)
        samples.series(OTHER)
        assert RUN in samples._read, "it is being parsed, and not thrown out for another"
        readers[1].start()
    finally:
        done.set()
        for reader in readers:
            reader.join(60)
    assert [len(each["loss"]) for each in found] == [100, 100]
    once = sum(parsed)
    samples.series(RUN)
    assert sum(parsed) == once < 1.5 * samples._path(RUN).stat().st_size, "a torn piece is read again, the rest once"
    assert list(samples._read) == [RUN]


def test_sizes_are_of_blocks_used(samples):
    assert (samples.size(RUN), list(samples.sizes())) == (0, [])
    samples.append(RUN, [{"loss": 1.0}])
    samples.append(OTHER, [{"text": "x" * 900}] * 100)
    assert dict(samples.sizes()) == {RUN: samples.size(RUN), OTHER: samples.size(OTHER)}
    assert 0 < samples.size(RUN) <= 65536 < samples.size(OTHER)
