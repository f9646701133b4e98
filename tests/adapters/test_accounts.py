"""Whose a user id is: an account's own, one of its subordinate ids, or nobody's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters import accounts
from rota.adapters.accounts import Accounts
from rota.app.ports import Account
from tests.app.house import until

NOBODY = pwd.getpwnam("nobody").pw_uid
NOBODYS = Account("nobody", NOBODY, subordinate=True)


@pytest.fixture
def subuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "subuid"
    monkeypatch.setattr(accounts, "SUBUID", str(path))
    monkeypatch.setattr(accounts, "LOOK_EVERY_S", 0.01)
    return path


@pytest.fixture
def known(subuid: Path) -> Iterator[Accounts]:
    made = Accounts()
    made.start()
    yield made
    made.close()


def test_an_account_is_itself_and_an_id_without_one_is_nobodys(known: Accounts) -> None:
    assert known.of(NOBODY) == Account("nobody", NOBODY)
    assert known.of(900_000) == Account("uid900000", 900_000, known=False)
    assert (known.counted_as(NOBODY), known.counted_as(900_000)) == (NOBODY, 900_000)


def test_a_subordinate_id_is_its_accounts_and_a_change_of_the_file_is_seen(known: Accounts, subuid: Path) -> None:
    subuid.write_text("nobody:900000:65536\n")
    until(lambda: known.of(900_000) == NOBODYS, "the ids of the range are the account's")
    assert [known.counted_as(uid) for uid in (900_000, 965_535)] == [NOBODY, NOBODY]
    assert [known.of(uid).known for uid in (899_999, 965_536)] == [False, False]
    subuid.write_text(f"# moved\n{NOBODY}:700000:2\n")
    until(lambda: known.of(700_001) == NOBODYS, "the account is named by its number")
    assert not known.of(900_000).known
    subuid.unlink()
    until(lambda: not known.of(700_001).known, "there is no such file any more")


def test_the_ranges_of_an_account_are_known_by_its_name_and_its_id(subuid: Path) -> None:
    subuid.write_text("nobody:900000:10\nroot:910000:10\nnobody:920000:1\n")
    known = Accounts()
    known.look()
    assert known.subuids("nobody") == known.subuids(NOBODY) == [(900_000, 900_010), (920_000, 920_001)]
    assert known.subuids("root") == known.subuids(0) == (), "containers that root starts are other people's"


def test_odd_lines_are_left_out(subuid: Path) -> None:
    odd = ["", ":", "nobody", "nobody:x:1", "nobody:800000:0", "nobody:-5:9", "nosuchaccount:800000:9", "nobody:1:2:3"]
    odd += [f"nobody:{10**30}:1", f"nobody:800000:{10**30}", "\0:800000:5", "99999999999999:800000:5"]
    subuid.write_bytes("\n".join([*odd, "nobody:900000:1"]).encode() + b"\n\xff\xfe:800000:5\n")
    known = Accounts()
    known.look()
    assert (known.of(900_000), known.of(800_000).known) == (NOBODYS, False)


def test_a_file_without_end_is_read_to_a_bound(subuid: Path, caplog: pytest.LogCaptureFixture) -> None:
    subuid.write_text("nobody:900000:1\n" + "#\n" * accounts.MAX_RANGES + "nobody:950000:1\n")
    known = Accounts()
    known.look()
    assert (known.of(900_000), known.of(950_000).known) == (NOBODYS, False)
    assert "only the first" in caplog.text


def test_ids_of_roots_containers_are_counted_together_and_are_not_roots(subuid: Path) -> None:
    subuid.write_text("root:900000:65536\n")
    known = Accounts()
    known.look()
    assert not known.of(900_005).known
    assert {known.counted_as(uid) for uid in (900_000, 900_005, 965_535)} == {900_000}


def test_an_account_whose_id_lies_in_a_range_is_itself(subuid: Path) -> None:
    subuid.write_text(f"root:{NOBODY}:1\ndaemon:{os.geteuid()}:1\n")
    known = Accounts()
    known.look()
    assert known.of(NOBODY) == Account("nobody", NOBODY)
    assert known.counted_as(NOBODY) == NOBODY


def test_of_ranges_that_overlap_the_lower_one_counts(subuid: Path) -> None:
    subuid.write_text("nobody:900000:10\nroot:900005:10\nnobody:900002:3\n")
    known = Accounts()
    known.look()
    assert [known.of(uid).known for uid in (900_000, 900_004, 900_009, 900_010)] == [True, True, True, False]


def test_a_server_of_an_id_without_a_name_is_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is started with any number."""
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_998)
    assert Accounts().of(3_999_998) == Account("uid3999998", 3_999_998)
