"""The code of an earlier run, made again: a fresh git worktree at its commit with its changes applied.

Nothing that the checkout names is run (see `git`): the worktree is made without its files, by a git without hooks, and
the files are written by a git that does not know the checkout's configuration.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.git import GIT, careful, sealed
from rota.cli.workspace import unrestorable
from rota.client.errors import Refused

PATIENCE_S = 120.0


def restored(workspace: Mapping[str, Any], workdir: str, target: str, dry_run: bool = False) -> str:
    """Make `target`; the directory in it that `workdir` was in the old checkout. All of it, or nothing stays."""
    root, commit = str(workspace.get("root") or ""), str(workspace.get("commit") or "")
    if not root or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise _refusal("it was not submitted from a git commit")
    if workspace.get("dirty") and "diff" not in workspace:
        raise _refusal("changes that were not committed are shown to its owner and admins only")
    if why := unrestorable(workspace):
        raise _refusal(f"{why}; check out the commit by hand")
    if not os.path.exists(os.path.join(root, ".git")):
        raise _refusal(f"its checkout {root} is not on this machine")
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise _refusal(f"{target} is there already and not an empty directory; name another")
    inside = os.path.relpath(os.path.realpath(workdir), os.path.realpath(root))
    place = target if inside == "." or inside.startswith("..") else os.path.join(target, inside)
    if dry_run:
        return place
    diff = str(workspace.get("diff") or "")
    add = ["worktree", "add", "--quiet", "--no-checkout", "--detach", "--", target, commit]
    _git(root, careful(), add, "the worktree was not made")
    try:
        _check_out(target, diff.encode())
        os.makedirs(place, exist_ok=True)
    except (Refused, OSError):
        remove = ["worktree", "remove", "--force", "--", target]
        _git(root, careful(), remove, f"and {target} is left half made")
        raise
    return place


def _check_out(target: str, diff: bytes) -> None:
    """Write the files of the commit, and the changes, as they are in git: no filter of the checkout sees them."""
    try:
        with sealed(target, time.monotonic() + PATIENCE_S) as checkout:
            if checkout is None:
                raise _refusal("git does not answer in the new worktree")
            _git(target, checkout.env, ["read-tree", "--reset", "-u", "HEAD"], "its files were not written")
            if diff:
                _git(target, checkout.env, ["apply", "--whitespace=nowarn", "-"], "its changes do not apply", diff)
    except OSError as error:
        raise _refusal(f"there is no temporary directory for it: {error}") from error


def _git(where: str, env: Mapping[str, str], words: Sequence[str], trouble: str, given: bytes = b"") -> None:
    try:
        done = subprocess.run(
            [*GIT, "-C", where, *words], input=given, capture_output=True, env=env, timeout=PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise _refusal("there is no git on this machine") from None
    except subprocess.TimeoutExpired:
        raise _refusal(f"{trouble}: git took too long") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _refusal(f"{trouble}: {said[-1] if said else 'git failed'}")


def _refusal(why: str) -> Refused:
    return Refused(409, f"the code cannot be restored: {why}", "--restore")
