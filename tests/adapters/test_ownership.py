"""A server uses no file that another account could have written, or could exchange."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.adapters import datadir, ownership
from rota.adapters.datadir import DataDirError, open_data_dir
from rota.adapters.ownership import judge
from rota.adapters.store.open import open_store
from rota.app.errors import CannotStart
from rota.config import Settings
from rota.main import offline_tokens

ME = os.geteuid()
STRANGER = pwd.getpwnam("nobody")
ANN = 12345  # an account without a name
needs_root = pytest.mark.skipif(ME != 0, reason="gives files to another account")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data directory that a server has used."""
    where = tmp_path / "data"
    with offline_tokens(Settings(where)):
        pass
    for name in ("attempts", "live", "checkpoints"):
        (where / name).mkdir(mode=0o700)
    (where / "rota.sock").touch()
    (where / "rota.sock").chmod(0o666)
    return where


def give_away(path: Path) -> None:
    os.chown(path, STRANGER.pw_uid, STRANGER.pw_gid, follow_symlinks=False)


def told(data_dir: Path, database: Path | None = None) -> tuple[str, str]:
    unfit = judge(data_dir, database)
    assert unfit is not None
    return str(unfit.path), unfit.mend


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755, 0o750, 0o1755])
def test_usual_directories_are_fit(used: Path, mode: int) -> None:
    used.chmod(mode)
    assert judge(used) is None


def test_what_is_not_there_yet_is_fit(tmp_path: Path) -> None:
    assert judge(tmp_path / "a" / "b") is None
    unfit = judge(tmp_path / "a" / "b", must_exist=True)
    assert unfit is not None
    assert unfit.path == tmp_path / "a"
    assert judge(tmp_path / "a", tmp_path / "rota.db") is None


def test_a_directory_that_others_may_write_to_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    where = tmp_path / "data"
    where.mkdir()
    for mode in (0o777, 0o1777, 0o702):
        where.chmod(mode)
        assert told(where) == (str(where), f"chmod go-w {where}")
        with pytest.raises(DataDirError, match=rf"{where} can be written to by others .*; chmod go-w {where}"):
            open_data_dir(where)
        assert list(where.iterdir()) == []


def test_a_parent_in_which_others_may_rename_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    parent, where = tmp_path / "parent", tmp_path / "parent" / "between" / "data"
    where.mkdir(parents=True)
    parent.chmod(0o777)
    assert told(where) == (str(parent), f"chmod go-w {parent}, or: chmod +t {parent}, or choose another directory")
    assert told(parent / "new")[0] == str(parent)
    parent.chmod(0o1777)
    assert judge(where) is None
    assert judge(parent / "new") is None


def test_directories_are_made_so_that_only_their_owner_writes(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_data_dir(tmp_path / "a" / "b" / "data").close()
        open_data_dir(tmp_path / "a" / "b" / "data").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o755, 0o755]


def test_a_directory_of_an_earlier_version_that_had_a_umask_of_nothing_is_fit(used: Path) -> None:
    (used / "store-made").chmod(0o666)
    assert judge(used) is None
    open_data_dir(used).close()


@pytest.mark.parametrize("name", ["rota.db", "rota.db-wal", "rota.db-shm", "lock", "admin.token", "attempts"])
def test_an_entry_that_others_may_write_to_is_refused(used: Path, name: str) -> None:
    path = used / name
    if not path.exists():
        path.touch()
    path.chmod(0o766)
    assert told(used) == (str(path), f"chmod go-w {path}")


@needs_root
def test_a_directory_of_another_account_is_refused(used: Path) -> None:
    give_away(used)
    path, mend = told(used)
    assert path == str(used) and f"chown -R root {used}" in mend and "run the server as nobody" in mend
    assert judge(used, uid=STRANGER.pw_uid) is None, "a server of that account may use it, and what root has put there"
    why = rf"{used} belongs to the account nobody, which could run commands as root"
    with pytest.raises(CannotStart, match=why), offline_tokens(Settings(used)):
        pass


@needs_root
@pytest.mark.parametrize("name", ["rota.db", "rota.db-wal", "attempts", "attempts/x-1", "live/x-1", "session.key"])
def test_an_entry_of_another_account_is_refused(used: Path, name: str) -> None:
    path = used / name
    if not path.exists():
        path.touch()
    give_away(path)
    assert told(used)[0] == str(path)


@needs_root
def test_a_parent_of_another_account_is_refused(used: Path) -> None:
    give_away(used.parent)
    assert told(used) == (str(used.parent), f"choose another directory, or: chown root {used.parent}")


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o2775])
def test_a_persons_server_says_what_others_could_do_above_it_and_starts(tmp_path: Path, mode: int) -> None:
    """A lab's directory belongs to its administrator, and its group may write to it."""
    lab, where = tmp_path / "lab", tmp_path / "lab" / "ann" / "data"
    where.mkdir(parents=True)
    for path in (where, where.parent):
        os.chown(path, ANN, ANN)
    os.chown(lab, STRANGER.pw_uid, STRANGER.pw_gid)
    lab.chmod(mode)
    unfit = judge(where, uid=ANN)
    assert unfit is not None
    assert (unfit.path, unfit.is_tolerated) == (lab, True)
    where.chmod(0o777)  # what is not tolerated is told first
    refused = judge(where, uid=ANN)
    assert refused is not None
    assert (refused.path, refused.is_tolerated) == (where, False)
    where.chmod(0o700)
    lab.chmod(0o777)
    opened = judge(where, uid=ANN)
    assert opened is not None
    assert (opened.path, opened.is_tolerated) == (lab, False)


@needs_root
def test_a_persons_server_starts_where_an_administrators_link_leads_to_its_directory(tmp_path: Path) -> None:
    lab, where = tmp_path / "lab", tmp_path / "raid" / "ann" / "data"
    lab.mkdir()
    where.mkdir(parents=True)
    for path in (where, where.parent):
        os.chown(path, ANN, ANN)
    link = lab / "ann"
    link.symlink_to(where.parent)
    give_away(link)
    unfit = judge(link / "data", uid=ANN)
    assert unfit is not None
    assert (unfit.path, unfit.is_tolerated) == (link, True)
    assert unfit.mend == f"choose the directory that it leads to: {where.parent}"
    refused = judge(link / "data")
    assert refused is not None
    assert (refused.path, refused.is_tolerated) == (link, False), "root trusts nobody"
    lab.chmod(0o1777)
    opened = judge(link / "data", uid=ANN)
    assert opened is not None
    assert (opened.path, opened.is_tolerated) == (link, False), "everybody can make a link there"
    give_away(lab)
    owned = judge(link / "data", uid=ANN)
    assert owned is not None
    assert (owned.path, owned.is_tolerated) == (lab, True), "its owner can rename everything there anyway"


def test_what_is_tolerated_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unfit = ownership.Unfit(tmp_path, "belongs to the account lab", "choose another directory", is_tolerated=True)
    monkeypatch.setattr(datadir, "judge", lambda where, **_: unfit)
    for _ in ("the first start makes it", "the next one finds it"):
        caplog.clear()
        open_data_dir(tmp_path / "data").close()
        assert [record.getMessage() for record in caplog.records if "as safe as" in record.getMessage()] == [
            f"the data directory {tmp_path / 'data'} is as safe as a directory above it: {unfit}"
        ]


@pytest.mark.parametrize("name", ["notes.txt", "rota.db.backup", "old"])
def test_a_file_of_the_own_account_that_no_server_opens_is_harmless(used: Path, name: str) -> None:
    (used / name).touch()
    (used / name).chmod(0o666)
    assert judge(used) is None
    if ME == 0:
        give_away(used / name)
        assert told(used)[0] == str(used / name)


@pytest.mark.parametrize("name", [".installation-id.77", "session.key.77.new"])
def test_a_file_in_the_making_is_judged(used: Path, name: str) -> None:
    (used / name).touch()
    (used / name).chmod(0o666)
    assert told(used)[0] == str(used / name)


@needs_root
def test_checkpoints_belong_to_the_accounts_of_runs(used: Path) -> None:
    (used / "checkpoints" / "run").mkdir()
    give_away(used / "checkpoints" / "run")
    assert judge(used) is None


@needs_root
def test_a_link_of_another_account_is_refused(used: Path, tmp_path: Path) -> None:
    everybodys = tmp_path / "tmp"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    (everybodys / "link").symlink_to(used)
    assert judge(everybodys / "link") is None
    give_away(everybodys / "link")
    assert told(everybodys / "link") == (str(everybodys / "link"), f"remove it: rm {everybodys / 'link'}")


def test_what_a_link_leads_to_is_judged_with_the_way_to_it(used: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    (wide / "inner").mkdir(parents=True)
    wide.chmod(0o777)
    (tmp_path / "link").symlink_to("wide/inner")
    assert told(tmp_path / "link")[0] == str(wide)
    (used / "metrics").symlink_to(wide / "inner")
    assert told(used)[0] == str(wide)
    wide.chmod(0o755)
    assert judge(used) is None
    (wide / "inner").chmod(0o777)
    assert told(used)[0] == str(wide / "inner")


def test_a_link_to_itself_is_an_error_and_no_endless_walk(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        judge(tmp_path / "loop")
    with pytest.raises(DataDirError, match="Too many levels"):
        open_data_dir(tmp_path / "loop")


def test_a_linked_database_is_judged_where_it_lies(used: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    (used / "rota.db").rename(wide / "ledger")
    (used / "rota.db").symlink_to(wide / "ledger")
    assert judge(used) is None
    wide.chmod(0o1777)
    assert told(used) == (str(wide), f"chmod go-w {wide}")


def test_a_database_of_a_url_is_judged(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    url = f"sqlite:///{shared / 'ledger.db'}"
    shared.chmod(0o1777)
    why = rf"--database-url .*{shared} can be written to by others"
    with pytest.raises(CannotStart, match=why), offline_tokens(Settings(tmp_path / "data", url)):
        pass
    assert list(shared.iterdir()) == []
    shared.chmod(0o755)
    open_store(url).close()
    (shared / "ledger.db-wal").touch()
    (shared / "ledger.db-wal").chmod(0o666)
    assert told(tmp_path / "data", shared / "ledger.db")[0] == str(shared / "ledger.db-wal")
    (shared / "ledger.db-wal").chmod(0o600)
    with offline_tokens(Settings(tmp_path / "data", url)):
        pass


def test_the_directory_of_a_database_must_be_there_when_it_is_judged(tmp_path: Path) -> None:
    """A server does not make it. Where everybody may make directories, another account could, between the judgement and
    the opening of the database."""
    missing = tmp_path / "missing"
    for database in (missing / "x.db", missing / "below" / "x.db"):
        assert told(tmp_path / "data", database) == (str(missing), f"make it first: mkdir -m 700 {missing}")
        settings = Settings(tmp_path / "data", f"sqlite:///{database}")
        with pytest.raises(CannotStart, match=f"--database-url .*{missing} is not there"), offline_tokens(settings):
            pass
    assert judge(tmp_path / "new", tmp_path / "new" / "x.db") is None, "a server makes its data directory"


def test_the_directory_of_a_database_that_is_away_only_while_it_is_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, look = tmp_path / "there", ownership._facts
    there.mkdir()
    there.chmod(0o777)  # as unfit as another account's
    looks: list[Path] = []

    def away_at_the_second(path: Path) -> os.stat_result | None:
        looks.append(path)
        return None if path == there and looks.count(there) == 2 else look(path)

    monkeypatch.setattr(ownership, "_facts", away_at_the_second)
    assert told(tmp_path / "data", there / "x.db")[0] == str(there)
    assert looks.count(there) == 2


# A group as the system tells it: its name and its members, and which accounts have it as their first.
Group = Callable[[str, list[str], list[int]], None]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    def say(name: str, members: list[str], first_of: list[int]) -> None:
        entry = grp.struct_group((name, "x", 4711, members))
        accounts = [pwd.struct_passwd((f"a{uid}", "x", uid, 4711, "", "/", "/bin/sh")) for uid in first_of]
        monkeypatch.setattr(grp, "getgrgid", lambda gid: entry)
        monkeypatch.setattr(pwd, "getpwall", lambda: accounts)

    return say


def others_write(uid: int, mode: int = 0o40775) -> bool:
    facts = os.stat_result((mode, 1, 1, 1, uid, 4711, 0, 0, 0, 0))
    return ownership._Judge(uid)._others_write(Path("/"), facts)


def test_a_group_that_only_its_account_is_in_may_write(group: Group) -> None:
    uid, name = STRANGER.pw_uid, STRANGER.pw_name
    group(name, [], [uid])
    assert not others_write(uid)
    group(name, [name, "root"], [uid])
    assert not others_write(uid)
    group(name, ["bob"], [uid])
    assert others_write(uid), "somebody else is in the group"
    group(name, [], [uid, 54321])
    assert others_write(uid), "it is the first group of somebody else"
    group("users", [], [uid])
    assert others_write(uid), "not every system tells the members of such a group"
    assert not others_write(uid, 0o40755)
    group(name, [], [uid])
    assert others_write(uid, 0o40777)


def test_an_access_list_beside_the_mode_counts(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group(STRANGER.pw_name, [], [])
    monkeypatch.setattr(ownership, "_has_acl", lambda path: True)
    assert others_write(STRANGER.pw_uid)
    assert not others_write(STRANGER.pw_uid, 0o40755)


def test_numbers_without_names_are_known_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(gid: int) -> grp.struct_group:
        raise KeyError

    monkeypatch.setattr(grp, "getgrgid", none)
    assert not others_write(4711)
    assert others_write(4712)


def test_an_owner_whom_the_user_namespace_hides_may_own_what_is_above(
    used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = os.lstat

    def hidden(path: Path) -> os.stat_result:
        real = facts(path)
        uid = ME if Path(path).is_relative_to(used) else 65534
        return os.stat_result((*real[:4], uid, *real[5:10]))

    monkeypatch.setattr(os, "lstat", hidden)
    monkeypatch.setattr(os, "stat", lambda path, **options: hidden(path))
    assert judge(used) is not None
    monkeypatch.setattr(ownership, "is_unmapped", lambda uid: uid == 65534)
    assert judge(used) is None


@needs_root
def test_a_directory_that_another_account_makes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "data"
    looked = Path.is_dir

    def is_dir(path: Path) -> bool:
        there = looked(path)
        if path == where and not there:
            where.mkdir()
            give_away(where)
        return there

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(DataDirError, match=f"{where} belongs to the account"):
        open_data_dir(where)
    assert list(where.iterdir()) == []


@needs_root
def test_a_directory_that_is_away_only_while_it_is_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, aside = tmp_path / "data", tmp_path / "aside"
    where.mkdir()
    give_away(where)

    def judge_nothing(path: Path, *, must_exist: bool = False) -> ownership.Unfit | None:
        where.rename(aside)
        found = judge(path, must_exist=must_exist)
        aside.rename(where)
        return found

    monkeypatch.setattr(datadir, "judge", judge_nothing)
    with pytest.raises(DataDirError, match=f"{where} is not there"):
        open_data_dir(where)
    assert list(where.iterdir()) == []


@needs_root
def test_a_link_to_a_directory_of_roots_that_is_away_while_it_is_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory that is held is root's then, but the path can be made to lead elsewhere at any time."""
    between, aside, roots = tmp_path / "theirs", tmp_path / "aside", tmp_path / "roots"
    roots.mkdir()
    between.mkdir()
    (between / "data").symlink_to(roots)
    give_away(between)

    def judge_nothing(path: Path, *, must_exist: bool = False) -> ownership.Unfit | None:
        between.rename(aside)
        found = judge(path, must_exist=must_exist)
        aside.rename(between)
        return found

    monkeypatch.setattr(datadir, "judge", judge_nothing)
    with pytest.raises(DataDirError, match=f"{between} is not there"):
        open_data_dir(between / "data")
    assert list(roots.iterdir()) == []


def test_a_path_that_leads_elsewhere_than_to_the_directory_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, other = tmp_path / "data", tmp_path / "other"
    where.mkdir()
    other.mkdir()

    def judge_the_other(path: Path, *, must_exist: bool = False) -> ownership.Unfit | None:
        where.rename(tmp_path / "aside")
        other.rename(where)
        return judge(path, must_exist=must_exist)

    monkeypatch.setattr(datadir, "judge", judge_the_other)
    with pytest.raises(DataDirError, match="another account exchanged it"):
        open_data_dir(where)
    assert list(where.iterdir()) == list((tmp_path / "aside").iterdir()) == []


@needs_root
def test_a_directory_on_the_way_that_becomes_a_link_while_it_is_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between, roots, look = tmp_path / "theirs", tmp_path / "roots", ownership._facts
    (roots / "data").mkdir(parents=True)
    between.mkdir()
    give_away(between)

    def exchanged_after(path: Path) -> os.stat_result | None:
        facts = look(path)
        if path == between and not between.is_symlink():
            between.rmdir()
            between.symlink_to(roots)
            give_away(between)
        return facts

    monkeypatch.setattr(ownership, "_facts", exchanged_after)
    assert told(between / "data")[0] == str(between)


def test_what_a_link_of_the_database_leads_to_is_judged_also_while_it_is_absent(used: Path, tmp_path: Path) -> None:
    theirs, missing = tmp_path / "theirs", tmp_path / "missing"
    (used / "rota.db").unlink()
    (used / "rota.db").symlink_to(theirs / "ledger")
    assert told(used)[0] == str(theirs), "another account could make it"
    (used / "rota.db").unlink()
    (used / "rota.db").symlink_to(missing)
    assert judge(used) is None, "SQLite makes it, in a directory that nobody else writes to"
