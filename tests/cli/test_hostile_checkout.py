"""A checkout that others can write to: recording it and restoring it runs nothing that it names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.cli import workspace
from rota.cli.restore import restored
from rota.cli.workspace import snapshot
from rota.client.errors import Refused
from tests.cli.test_workspace import WHO, git

ALLOWED = {"GIT_ALLOW_PROTOCOL": "file:ext", "GIT_CONFIG_NOSYSTEM": "1"}


class Trap:
    """A checkout with a modified file, and a program that leaves a canary behind wherever it is run."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.canary = where / "canary"
        self.program = where / "evil.sh"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.canary}\nexec cat\n')
        self.program.chmod(0o755)
        self.repo = where / "repo"
        make_repo(self.repo)

    def config(self, name: str, value: str = "") -> None:
        git(self.repo, "config", name, value or str(self.program))

    def attributes(self, line: str) -> None:
        (self.repo / ".git" / "info").mkdir(exist_ok=True)
        with (self.repo / ".git" / "info" / "attributes").open("a") as file:
            file.write(f"{line}\n")

    def hook(self, name: str, directory: Path | None = None) -> None:
        directory = directory or self.repo / ".git" / "hooks"
        directory.mkdir(exist_ok=True)
        shutil.copy(self.program, directory / name)

    def sprung(self) -> bool:
        found = self.canary.exists()
        self.canary.unlink(missing_ok=True)
        return found


def make_repo(where: Path) -> None:
    where.mkdir()
    git(where, "init", "-q", "-b", "main")
    (where / "data.dat").write_bytes(b"old data\r\nraw\n")
    (where / "train.py").write_text("print('old')\n")
    git(where, "add", "-A")
    git(where, "commit", "-q", "-m", "first")


def hooks(trap: Trap) -> None:
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        trap.hook(name)


def hooks_elsewhere(trap: Trap) -> None:
    trap.hook("post-checkout", trap.where / "hooks")
    trap.config("core.hooksPath", str(trap.where / "hooks"))


def filters(trap: Trap) -> None:
    trap.attributes("*.dat filter=evil")
    for kind in ("clean", "smudge"):
        trap.config(f"filter.evil.{kind}")
    trap.config("filter.evil.required", "true")


def filters_in_the_tree(trap: Trap) -> None:
    (trap.repo / ".gitattributes").write_text("*.dat filter=x.y-1\n")
    trap.config("filter.x.y-1.clean")
    trap.config("filter.x.y-1.smudge")


def long_running_filter(trap: Trap) -> None:
    trap.attributes("* filter=evil")
    trap.config("filter.evil.process")


def included_filter(trap: Trap) -> None:
    trap.attributes("* filter=evil")
    (trap.where / "more").write_text(f'[filter "evil"]\n\tclean = {trap.program}\n\tsmudge = {trap.program}\n')
    trap.config("include.path", str(trap.where / "more"))


def monitor(trap: Trap) -> None:
    trap.config("core.fsmonitor")


def external_diff(trap: Trap) -> None:
    trap.config("diff.external")


def diff_drivers(trap: Trap) -> None:
    trap.attributes("*.dat diff=evil")
    trap.config("diff.evil.textconv")
    trap.config("diff.evil.command")


def in_a_submodule(trap: Trap) -> None:
    inner = trap.where / "inner"
    make_repo(inner)
    git(trap.repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(trap.repo, "commit", "-q", "-m", "with a submodule")
    git(trap.repo / "sub", "config", "core.fsmonitor", str(trap.program))
    (trap.repo / "sub" / "train.py").write_text("print('new')\n")
    trap.config("diff.submodule", "diff")
    trap.config("status.submoduleSummary", "true")
    trap.config("submodule.recurse", "true")


def missing_object(trap: Trap) -> None:
    """Of a partial clone: git fetches it, through whatever program the configuration names."""
    blob = git(trap.repo, "rev-parse", "HEAD:data.dat")
    (trap.repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    trap.config("core.repositoryFormatVersion", "1")
    trap.config("extensions.partialClone", "origin")
    trap.config("remote.origin.promisor", "true")
    trap.program.write_text(f"#!/bin/sh\ntouch {trap.canary}\nexit 1\n")
    trap.config("remote.origin.url", f"ext::{trap.program}")
    trap.config("protocol.ext.allow", "always")
    trap.config("core.sshCommand")
    trap.config("credential.helper")


TRAPS = [
    hooks, hooks_elsewhere, filters, filters_in_the_tree, long_running_filter, included_filter, monitor, external_diff,
    diff_drivers, in_a_submodule, missing_object,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a checkout look like none."""
    monkeypatch.setattr(workspace, "PATIENCE_S", 60.0)


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.mark.parametrize("lay", TRAPS)
def test_nothing_is_run_that_the_checkout_names(trap: Trap, lay: Callable[[Trap], None], tmp_path: Path) -> None:
    lay(trap)
    (trap.repo / "data.dat").write_bytes(b"new data\r\nraw\n")
    (trap.repo / "fresh.dat").write_bytes(b"fresh\n")
    (trap.repo / ".git" / "index").touch()
    trap.canary.unlink(missing_ok=True)

    found = snapshot(str(trap.repo), ["train"], {})
    assert not trap.sprung(), "recording the checkout ran something"
    target = tmp_path / "again"
    if lay is missing_object:
        assert found["commit"] == git(trap.repo, "rev-parse", "HEAD") and found["diff_truncated"]
        with pytest.raises(Refused, match="files were not written"):
            restored({**found, "diff_truncated": False}, str(trap.repo), str(target))
        assert not trap.sprung() and not target.exists()
    else:
        assert not found["diff_truncated"] and found["dirty"]
        restored(found, str(trap.repo), str(target))
        assert not trap.sprung(), "restoring the checkout ran something"
        assert (target / "data.dat").read_bytes() == b"new data\r\nraw\n"
        assert (target / "fresh.dat").read_bytes() == b"fresh\n"
        assert (target / "train.py").read_text() == "print('old')\n"
        assert git(target, "-c", "core.fsmonitor=false", "rev-parse", "HEAD") == found["commit"]

    trap.sprung()
    for words in (["status"], ["diff", "HEAD"], ["worktree", "add", "--detach", str(tmp_path / "plain")]):
        env = {**os.environ, **WHO, **ALLOWED}
        subprocess.run(["git", "-C", str(trap.repo), *words], env=env, stdin=subprocess.DEVNULL, check=False)
    assert trap.sprung(), "a plain git runs it: the trap is a real one"


def test_the_callers_variables_do_not_lead_git_elsewhere(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repo(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap.program))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nothing"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    (trap.repo / "train.py").write_text("print('new')\n")
    (tmp_path / "other" / "train.py").write_text("print('other')\n")
    found = snapshot(str(trap.repo), ["train"], {})
    restored(found, str(trap.repo), str(tmp_path / "again"))
    assert "print('new')" in found["diff"] and "other" not in found["diff"]
    assert (tmp_path / "again" / "train.py").read_text() == "print('new')\n"
    assert not trap.sprung() and not (tmp_path / "trace").exists()


def test_settings_about_how_files_are_written_still_hold(trap: Trap, tmp_path: Path) -> None:
    trap.config("core.autocrlf", "true")
    trap.config("core.fileMode", "false")
    (trap.repo / "train.py").write_bytes(b"print('old')\r\n")
    (trap.repo / "data.dat").chmod(0o755)
    (trap.repo / "ignored.tmp").write_text("x")
    (tmp_path / "ignore").write_text("*.tmp\n")
    trap.config("core.excludesFile", str(tmp_path / "ignore"))
    found = snapshot(str(trap.repo), ["train"], {})
    assert found["diff"] == ""
    restored(found, str(trap.repo), str(tmp_path / "again"))
    assert (tmp_path / "again" / "train.py").read_bytes() == b"print('old')\r\n"


@pytest.mark.parametrize("kind", ["a linked worktree", "a sha256 repository", "a shallow clone", "a sparse checkout"])
def test_other_kinds_of_checkouts(tmp_path: Path, kind: str) -> None:
    base, where = tmp_path / "base", tmp_path / "here"
    if kind == "a sha256 repository":
        where.mkdir()
        git(where, "init", "-q", "-b", "main", "--object-format=sha256")
        (where / "train.py").write_text("print('old')\n")
        git(where, "add", "-A")
        git(where, "commit", "-q", "-m", "first")
    else:
        make_repo(base)
        (base / "more").mkdir()
        (base / "more" / "large.txt").write_text("large\n")
        git(base, "add", "-A")
        git(base, "commit", "-q", "-m", "second")
    if kind == "a linked worktree":
        git(base, "pack-refs", "--all")
        git(base, "worktree", "add", "-q", "-b", "branch", str(where))
    elif kind == "a shallow clone":
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{base}", str(where))
    elif kind == "a sparse checkout":
        git(tmp_path, "clone", "-q", str(base), str(where))
        git(where, "sparse-checkout", "set", "nothing")
        assert not (where / "more").exists()
    (where / "train.py").write_text("print('new')\n")
    found = snapshot(str(where), ["train"], {})
    assert found["commit"] == git(where, "rev-parse", "HEAD")
    assert found["branch"] == ("branch" if kind == "a linked worktree" else "main")
    assert found["diff"].count("diff --git") == 1 and not found["diff_truncated"]
    restored(found, str(where), str(tmp_path / "again"))
    assert (tmp_path / "again" / "train.py").read_text() == "print('new')\n"
    assert git(tmp_path / "again", "status", "--porcelain") == "M train.py"


def test_nothing_is_left_in_the_temporary_directory(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    found = snapshot(str(trap.repo), ["train"], {})
    restored(found, str(trap.repo), str(tmp_path / "again"))
    assert found["commit"] and not list((tmp_path / "scratch").iterdir())
