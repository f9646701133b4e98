"""What the code looked like when a run was submitted: commit, branch, what was not committed, and a few variables.

Git is asked by argument lists, bounded in time and size, and runs nothing that the checkout names (see `git`). It never
prompts and writes nothing; where it is missing the run is submitted all the same. Files and variables whose names speak
of secrets stay here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_DIFF = 256 * 1024
MAX_WORD = 500  # characters of a path, a branch, a remote
MAX_VALUE = 1000
MAX_NAMES = 200
MAX_LEFT_OUT = 100  # names of files that could not be recorded
SHOWN_LEFT_OUT = 5
PATIENCE_S = 2.0
ALLOWED = (
    "CUDA", "NCCL", "OMP_", "MKL_", "PYTHON", "CONDA_", "TORCH", "XLA_", "JAX_", "VIRTUAL_ENV", "WANDB_PROJECT",
    "WANDB_ENTITY", "WANDB_MODE", "WANDB_NAME", "WANDB_RUN_GROUP", "MLFLOW_EXPERIMENT", "HF_HOME", "MASTER_ADDR",
    "MASTER_PORT", "WORLD_SIZE",
)  # fmt: skip
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")
SECRETIVE = (  # compiled only where there is a checkout: that takes longer than the rest of a submit
    r"(^|/)(\.env[^/]*|\.netrc|\.pypirc|\.npmrc|\.git-credentials|id_[a-z0-9]+"
    r"|[^/]*(token|secret|password|passwd|credential)[^/]*|[^/]*\.(pem|key|p12|pfx|kdbx))$"
)
# Submodules are not looked into: git would run itself in each of them, with the submodule's own configuration.
STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignore-submodules=dirty")
DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--binary", "--ignore-submodules=dirty", "--submodule=short")


def snapshot(where: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The `workspace` of a submit. Whatever cannot be found out is left out."""
    found: dict[str, Any] = {"argv": [_sendable(word) for word in argv], "env": allowed(env)}
    root = checkout(where)
    if root:
        found["root"] = _sendable(root)
        found |= _from_git(root)
    return found


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in sorted(env) if name.startswith(ALLOWED) and not any(w in name for w in SECRET_WORDS)]
    return {name: _sendable(env[name][:MAX_VALUE]) for name in names[:MAX_NAMES]}


def secret(name: str) -> bool:
    """Whether a file's name speaks of secrets."""
    return re.search(SECRETIVE, name, re.IGNORECASE) is not None


def checkout(where: str) -> str:
    """The directory that holds .git, here or above; "" = none. Without a process: most submits have no checkout."""
    while True:
        if os.path.exists(os.path.join(where, ".git")):
            return where if len(where) <= MAX_WORD else ""
        above = os.path.dirname(where)
        if above == where:
            return ""
        where = above


def _from_git(root: str) -> dict[str, Any]:
    import time

    from rota.cli.git import ask, sealed

    try:
        with sealed(root, time.monotonic() + PATIENCE_S) as checkout:
            if checkout is None:
                return {}
            status, diff = ask(root, checkout.env, time.monotonic() + PATIENCE_S, STATUS, DIFF)
    except OSError:  # no place for a private directory
        return {}
    if status is None:
        return {}
    commit, branch, changed, untracked = read_status(status)
    found: dict[str, Any] = {"commit": commit, "branch": branch[:MAX_WORD], "dirty": bool(changed or untracked)}
    remote = checkout.config.get("remote.origin.url")
    if remote:
        found["remote"] = without_credentials(_sendable(remote).strip())[:MAX_WORD]
    text, whole, left_out = patch(root, diff, untracked)
    found["diff"] = text
    found["diff_truncated"] = not whole
    if left_out:
        found["left_out"] = [_sendable(name)[:MAX_WORD] for name in left_out]
    return found


def unrestorable(workspace: Mapping[str, Any]) -> str:
    """Return why the code of a run cannot be made again, with the files that were not recorded; "" = it can."""
    if not workspace.get("diff_truncated"):
        return ""
    names = [str(name) for name in workspace.get("left_out") or ()]
    if not names:
        return "its changes are too large, or no text, to be kept whole"
    shown = ", ".join(names[:SHOWN_LEFT_OUT])
    least = "at least " if len(names) >= MAX_LEFT_OUT else ""
    more = f" and {least}{len(names) - SHOWN_LEFT_OUT} more" if len(names) > SHOWN_LEFT_OUT else ""
    return f"untracked files are too large, or no text, to be kept: {shown}{more}"


def read_status(data: bytes) -> tuple[str, str, bool, list[str]]:
    """Commit, branch, whether tracked files changed, and the names of untracked files."""
    commit, branch, changed, untracked = "", "", False, []
    for entry in os.fsdecode(data).split("\0"):
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = entry.removeprefix("# branch.oid ").removeprefix("(initial)")
        elif entry.startswith("# branch.head "):
            branch = entry.removeprefix("# branch.head ")
        elif kind == "?":
            untracked.append(rest)
        elif kind in ("1", "2", "u"):
            changed = True
    return commit, _sendable(branch), changed, untracked


def patch(root: str, diff: bytes | None, untracked: Sequence[str]) -> tuple[str, bool, list[str]]:
    """Return what was not committed as one patch, whether it is all of it, and the first untracked files that it does
    not hold, apart from secret ones."""
    pieces: list[bytes] = []
    left_out: list[str] = []
    whole = diff is not None
    pieces += _files_of(diff or b"")
    left = MAX_DIFF - sum(map(len, pieces))
    for name in untracked:
        if len(left_out) >= MAX_LEFT_OUT and left <= 0:
            break
        made = new_file(root, name, left) if left > 0 else None
        if made is None or len(made) > left:
            if _is_plain(root, name):
                whole = False
                left_out += [name] if len(left_out) < MAX_LEFT_OUT else []
            continue
        pieces.append(made)
        left -= len(made)
    data = b"".join(pieces)
    if len(data) > MAX_DIFF:
        data, whole = data[:MAX_DIFF], False
    try:
        return data.decode("utf-8"), whole, left_out
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False, left_out


def _files_of(diff: bytes) -> Iterator[bytes]:
    """The patch file by file, without those whose names speak of secrets."""
    for piece in re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE):
        head = piece.partition(b"\n")[0]
        names = [name.strip('"') for name in _text(head).split(" b/")[1:]]
        if piece and not any(secret(name) for name in names):
            yield piece


def new_file(root: str, name: str, room: int) -> bytes | None:
    """A patch that makes an untracked text file; None for what is secret, binary, too large or no plain file."""
    if secret(name):
        return None
    try:
        number = _opened(root, name)
        with open(number, "rb") as file:
            facts = os.fstat(number)
            if not _regular(facts.st_mode) or facts.st_size > room:
                return None
            content = file.read(room + 1)
    except OSError:
        return None
    if not _is_text(content) or len(content) > room:
        return None
    mode = b"100755" if facts.st_mode & 0o100 else b"100644"
    head = b"diff --git %b %b\nnew file mode %b\n" % (quoted("a/" + name), quoted("b/" + name), mode)
    if not content:
        return head
    lines = content.split(b"\n")
    ends = lines[-1] == b""
    lines = lines[:-1] if ends else lines
    body = b"".join(b"+" + line + b"\n" for line in lines)
    body += b"" if ends else b"\\ No newline at end of file\n"
    return head + b"--- /dev/null\n+++ %b\n@@ -0,0 +1,%d @@\n" % (quoted("b/" + name), len(lines)) + body


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _opened(root: str, name: str) -> int:
    """Open a file of the checkout through no link: also a directory may have become one since git looked."""
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    *directories, last = name.split("/")
    if ".." in directories or last in ("", ".."):
        raise FileNotFoundError(name)
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in directories:
            inner = os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(last, how, dir_fd=place)
    finally:
        os.close(place)


def quoted(name: str) -> bytes:
    """As git writes names with unusual bytes."""
    raw = os.fsencode(name)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return raw
    return b'"' + b"".join(bytes([b]) if 0x20 <= b < 0x7F and b not in b'"\\' else b"\\%03o" % b for b in raw) + b'"'


def _regular(mode: int) -> bool:
    import stat

    return stat.S_ISREG(mode)


def _is_plain(root: str, name: str) -> bool:
    """A file that a patch should have held: too large, or no text. A secret one is left out on purpose."""
    return not secret(name) and os.path.isfile(os.path.join(root, name))


def without_credentials(url: str) -> str:
    bare = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/]*@", r"\1", url)
    return bare.partition("?")[0].partition("#")[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _sendable(text: str) -> str:
    """Bytes that are no UTF-8 cannot travel as JSON text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
