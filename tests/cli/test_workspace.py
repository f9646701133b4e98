"""The state of the code at submit, from a real git checkout, and back into a fresh worktree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rota.cli import story, workspace
from rota.cli.connect import note_left_out
from rota.cli.restore import restored
from rota.cli.workspace import MAX_DIFF, allowed, checkout, snapshot, without_credentials
from rota.client.errors import Refused

WHO = {"GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@example.org", "GIT_COMMITTER_NAME": "ann",
       "GIT_COMMITTER_EMAIL": "ann@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip

OUTSIDE = "diff --git a/../out b/../out\nnew file mode 100644\n--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n"


def git(where: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *words], env={**os.environ, **WHO}, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a checkout look like none."""
    monkeypatch.setattr(workspace, "PATIENCE_S", 60.0)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "src" / "train.py").write_text("print('old')\n")
    (root / "gone.txt").write_text("to be removed\n")
    (root / "blob.bin").write_bytes(bytes(range(256)))
    (root / ".env").write_text("PASSWORD=old\n")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-q", "-m", "first")
    git(root, "remote", "add", "origin", "https://ann:hunter2@example.org/lab/repo.git?token=x")
    return root


def dirty(repo: Path) -> None:
    (repo / "src" / "train.py").write_text("print('new')\n")
    (repo / "gone.txt").unlink()
    (repo / "blob.bin").write_bytes(b"\0changed\0")
    (repo / "new.py").write_text("fresh = 1")  # no newline at its end
    (repo / "empty").write_text("")
    script = repo / "src" / "with space é.sh"
    script.write_text("#!/bin/sh\necho hi\n")
    script.chmod(0o755)


def test_a_clean_checkout(repo):
    found = snapshot(str(repo / "src"), ["python", "train.py"], {})
    assert found["commit"] == git(repo, "rev-parse", "HEAD")
    assert (found["branch"], found["dirty"], found["diff"], found["diff_truncated"]) == ("main", False, "", False)
    assert found["root"] == str(repo)
    assert found["argv"] == ["python", "train.py"]


def test_the_remote_goes_without_its_password(repo):
    assert snapshot(str(repo), [], {})["remote"] == "https://example.org/lab/repo.git"
    assert without_credentials("ssh://git:p@w@host/x") == "ssh://host/x"
    assert without_credentials("git@host:lab/repo") == "git@host:lab/repo"


def test_secrets_stay_here(repo):
    dirty(repo)
    (repo / ".env").write_text("PASSWORD=canary\n")  # tracked and changed
    for name in (".env.local", "id_rsa", "my_token.txt", "server.pem", "Secrets.yaml"):
        (repo / name).write_text("canary\n")
    env = {"CUDA_HOME": "/cuda", "WANDB_PROJECT": "p", "WANDB_API_KEY": "canary", "PYTHON_TOKEN": "canary",
           "NCCL_AUTH": "canary", "AWS_SECRET_ACCESS_KEY": "canary", "PATH": "/bin"}  # fmt: skip
    found = snapshot(str(repo), ["x"], env)
    assert found["dirty"]
    assert "canary" not in str(found)
    assert found["env"] == {"CUDA_HOME": "/cuda", "WANDB_PROJECT": "p"}


def test_dirty_and_untracked_files_come_back_in_a_fresh_worktree(repo, tmp_path):
    dirty(repo)
    found = snapshot(str(repo), [], {})
    assert found["dirty"] and not found["diff_truncated"]
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "later")  # the checkout has moved on since
    target = tmp_path / "again"
    place = restored(found, str(repo / "src"), str(target))
    assert place == str(target / "src")
    assert (target / "src" / "train.py").read_text() == "print('new')\n"
    assert not (target / "gone.txt").exists()
    assert (target / "blob.bin").read_bytes() == b"\0changed\0"
    assert (target / "new.py").read_text() == "fresh = 1"
    assert (target / "empty").read_text() == ""
    assert os.access(target / "src" / "with space é.sh", os.X_OK)
    assert git(target, "rev-parse", "HEAD") == found["commit"]


def test_a_huge_diff_is_cut_and_not_restored(repo, tmp_path):
    (repo / "src" / "train.py").write_text("x = 1\n" * MAX_DIFF)
    found = snapshot(str(repo), [], {})
    assert found["diff_truncated"] and len(found["diff"].encode()) <= MAX_DIFF
    with pytest.raises(Refused, match="too large"):
        restored(found, str(repo), str(tmp_path / "again"))


def test_changes_that_the_server_does_not_show_are_not_restored_as_if_there_were_none(repo, tmp_path):
    dirty(repo)
    found = snapshot(str(repo), [], {})
    hidden = {name: value for name, value in found.items() if name not in ("diff", "env")}
    with pytest.raises(Refused, match="shown to its owner and admins only"):
        restored(hidden, str(repo), str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()
    assert story._code(hidden)[4] == ("changes", "not committed; shown to the run's owner and admins")
    assert restored({**hidden, "dirty": False}, str(repo), str(tmp_path / "again"), dry_run=True)


def test_a_huge_untracked_file_is_left_out_and_said_to_be(repo):
    (repo / "weights.txt").write_text("w" * (MAX_DIFF + 1))
    found = snapshot(str(repo), [], {})
    assert found["diff"] == "" and found["diff_truncated"] and found["dirty"]
    assert found["left_out"] == ["weights.txt"]


def test_untracked_files_that_cannot_be_recorded_are_named(repo, tmp_path, capsys):
    dirty(repo)
    whole = snapshot(str(repo), [], {})
    assert "left_out" not in whole
    note_left_out(whole)
    note_left_out(None)
    assert capsys.readouterr().err == ""
    (repo / "binary").write_bytes(b"a\0b")
    (repo / "latin1.txt").write_bytes(b"caf\xe9\n")
    (repo / "large.txt").write_text("x\n" * MAX_DIFF)
    (repo / "nearly.txt").write_text("\n" * (MAX_DIFF - 5000))  # a patch of it is twice as long
    (repo / "my.token").write_bytes(b"\0")  # secret: left out on purpose, and not told
    found = snapshot(str(repo), [], {})
    assert found["left_out"] == ["binary", "large.txt", "latin1.txt", "nearly.txt"]
    assert found["diff_truncated"] and found["diff"] == whole["diff"], "the rest is recorded, and as it was"
    with pytest.raises(Refused, match=r"to be kept: binary, large.txt, latin1.txt, nearly.txt; check out the commit"):
        restored(found, str(repo), str(tmp_path / "again"))
    note_left_out(found)
    assert "`rota rerun --restore` will not work for this run: untracked files" in capsys.readouterr().err


def test_the_list_of_such_files_is_bounded(repo):
    for number in range(3 * workspace.MAX_LEFT_OUT):
        (repo / f"binary{number:03}").write_bytes(b"\0")
    found = snapshot(str(repo), [], {})
    assert found["left_out"] == [f"binary{number:03}" for number in range(workspace.MAX_LEFT_OUT)]
    why = workspace.unrestorable(found)
    assert why.endswith("binary003, binary004 and at least 95 more")
    assert workspace.unrestorable({"diff_truncated": True}).startswith("its changes are too large")


def test_no_file_is_read_through_a_directory_that_became_a_link(repo, tmp_path):
    """An account that can write there could exchange it after git has listed it, and so publish a file elsewhere."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config").write_text("region = secret\n")
    (repo / "shared" / "deep").mkdir(parents=True)
    (repo / "shared" / "deep" / "config").write_text("mine\n")
    found = workspace.new_file(str(repo), "shared/deep/config", 1000)
    assert found is not None and b"+mine" in found
    before = len(os.listdir("/proc/self/fd"))
    os.rename(repo / "shared" / "deep", repo / "shared" / "old")
    os.symlink(tmp_path / "home", repo / "shared" / "deep")
    assert workspace.new_file(str(repo), "shared/deep/config", 1000) is None
    os.rename(repo / "shared", repo / "moved")
    os.symlink(repo / "moved", repo / "shared")
    assert workspace.new_file(str(repo), "shared/old/config", 1000) is None
    assert workspace.new_file(str(repo), "../home/config", 1000) is None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_is_no_file_is_not_waited_for(repo):
    os.mkfifo(repo / "pipe")
    os.symlink("/etc/passwd", repo / "link")
    found = snapshot(str(repo), [], {})
    assert "root:" not in found["diff"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"commit": ""}, "not submitted from a git commit"),
        ({"commit": "--upload-pack=x"}, "not submitted from a git commit"),
        ({"commit": "0" * 40}, "worktree was not made"),
        ({"root": "/nowhere/at/all"}, "not on this machine"),
        ({"diff": "nonsense\n"}, "do not apply"),
        ({"diff": OUTSIDE}, "do not apply"),
    ],
)  # fmt: skip
def test_what_cannot_be_restored_leaves_nothing_behind(repo, tmp_path, change, said):
    found = {**snapshot(str(repo), [], {}), **change}
    target = tmp_path / "again"
    with pytest.raises(Refused, match=said):
        restored(found, str(repo), str(target))
    assert not target.exists() and not (tmp_path / "out").exists()


def test_a_directory_in_use_is_refused(repo, tmp_path):
    found = snapshot(str(repo), [], {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(Refused, match="not an empty directory"):
        restored(found, str(repo), str(tmp_path / "mine"))
    assert restored(found, str(repo), str(tmp_path / "new"), dry_run=True) == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_a_checkout_and_without_git(tmp_path, repo, monkeypatch):
    assert checkout("/") == ""
    assert snapshot("/", ["ls"], {}) == {"argv": ["ls"], "env": {}}
    monkeypatch.setenv("PATH", "/nonexistent")
    found = snapshot(str(repo), ["ls"], {})
    assert found["root"] == str(repo) and "commit" not in found


def test_a_checkout_without_a_commit(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.py").write_text("1\n")
    found = snapshot(str(tmp_path), [], {})
    assert (found["commit"], found["branch"], found["dirty"]) == ("", "main", True)


def test_variables_are_bounded():
    many = {f"CUDA_{n:04}": "x" * 5000 for n in range(1000)}
    kept = allowed(many)
    assert len(kept) == 200 and all(len(value) == 1000 for value in kept.values())
