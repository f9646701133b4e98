"""A job of another account begins with a session keyring that has nothing of the server's, and that root does not pay
for."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, patched_launcher
from tests.backends.test_local_launch import run, text_of

ADD_KEY, KEYCTL = 248, 250
JOIN_SESSION_KEYRING = 1
USER_KEYRING = -4
ACCOUNT, FULL_ACCOUNT = "nobody", "games"  # no other test fills the key quota of the second

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of its system calls are those of x86_64"),
]

# In Perl, which every Debian has where all accounts may run it; add_key and keyctl by their numbers. Adds the key that
# is named, or else links the key of that name of its account; prints owner and permissions of the session keyring,
# whether that was done, and all keys in it.
KEYS = """
my ($session, $kind, $name, $value) = (-3, "user", $ARGV[0], "secret");
sub described {
    my $text = " " x 4096;
    syscall(250, 6, $_[0], $text, 4096);
    return split /;/, (split /\\0/, $text)[0];
}
my ($keyring, $uid, $gid, $permissions) = described($session);
print "$uid $permissions";
if (defined $name) {
    my $added = syscall(248, $kind, $name, $value, 6, $session);
    my $linked = $added < 0 ? syscall(250, 8, syscall(250, 10, -4, $kind, $name, 0), $session) : -1;
    print $added >= 0 ? " added" : $linked >= 0 ? " linked" : " refused";
}
print "\\n";
my $found = " " x 4096;
my $length = syscall(250, 11, $session, $found, 4096);
print((described($_))[-1], "\\n") for unpack("l*", substr($found, 0, $length > 0 ? $length : 0));
"""


def syscall(number: int, *args: bytes | int | None) -> int:
    """Return the error number, 0 for none."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    raw = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]
    return 0 if call(ctypes.c_long(number), *raw) >= 0 else ctypes.get_errno()


@pytest.fixture(scope="module", autouse=True)
def session_keyring() -> None:
    """Begin one for this process, as systemd gives it to a service, with a key in it."""
    if why := syscall(KEYCTL, JOIN_SESSION_KEYRING, None):
        pytest.skip(f"keyrings are denied in this container: {os.strerror(why)}")
    assert syscall(ADD_KEY, b"user", b"of-the-server", b"secret", 6, -3) == 0


@pytest.fixture
def rig(tmp_path: Path) -> LocalRig:
    return LocalRig(tmp_path)


@contextmanager
def full_quota(account: str) -> Iterator[None]:
    """Use up the key quota of an account, until the end."""
    uid = pwd.getpwnam(account).pw_uid
    (ready, says), (ends, end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.setresuid(uid, uid, uid)
        syscall(KEYCTL, JOIN_SESSION_KEYRING, None)
        made = 0
        while (why := syscall(ADD_KEY, b"user", b"%d" % made, b"x", 1, USER_KEYRING)) == 0:
            made += 1
        os.write(says, b"%d" % why)
        os.read(ends, 1)
        os._exit(syscall(KEYCTL, 7, USER_KEYRING))  # clear it, which would outlive this process
    os.close(says)
    os.close(ends)
    try:
        assert os.read(ready, 100) == b"%d" % errno.EDQUOT
        yield
    finally:
        os.close(end)
        os.close(ready)
        os.waitpid(pid, 0)


def test_a_job_has_no_keys_of_the_server_or_of_another_job(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    uid = pwd.getpwnam(ACCOUNT).pw_uid
    for name in (["of-a-job"], []):
        order, end = run(rig, backend, reports, "perl", "-e", KEYS, *name, account=ACCOUNT, workdir="/")
        assert end.ok, text_of(backend, order)
        facts, *seen = text_of(backend, order).splitlines()
        assert set(seen) == {*name, f"_uid.{uid}"}, "its own, and its account's"
        assert facts.split() == [str(uid), "3f030000", *["added" for _ in name]], "its account pays for what is in it"


def test_a_job_of_an_account_whose_key_quota_is_full_runs_and_costs_root_no_more_than_a_keyring(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    uid = pwd.getpwnam(FULL_ACCOUNT).pw_uid
    with full_quota(FULL_ACCOUNT):
        order, end = run(rig, backend, reports, "perl", "-e", KEYS, "0", account=FULL_ACCOUNT, workdir="/")
        assert end.ok, text_of(backend, order)
        facts, *seen = text_of(backend, order).splitlines()
        assert facts == "0 0b030000 refused", "root's, so nothing can be put or linked into it"
        assert seen == [f"_uid.{uid}"]
        order, end = run(rig, backend, reports, "perl", "-e", KEYS, account=ACCOUNT, workdir="/")
        assert end.ok and text_of(backend, order).startswith(f"{pwd.getpwnam(ACCOUNT).pw_uid} 3f030000\n")


@pytest.mark.parametrize(
    ("why", "said"), [(errno.EDQUOT, "/proc/key-users"), (errno.ENOMEM, "no memory left")], ids=["quota", "memory"]
)
def test_a_start_without_room_for_a_keyring_says_nothing_of_the_run(
    tmp_path: Path, reports: Reports, why: int, said: str
) -> None:
    patch = f"from rota.adapters.backends import task; task._keyctl = lambda operation, *args: {why} * (operation == 1)"
    rig = LocalRig(tmp_path, zygote_prefix=patched_launcher(patch))
    backend = rig.backend()
    backend.open(reports)
    try:
        order, end = run(rig, backend, reports, "true", account=ACCOUNT, workdir="/")
        assert (end.cause, end.shortage, end.code) == (Cause.LOST, True, None), end
        assert end.message.startswith("could not be started: ") and said in end.message and "disk" not in end.message
        assert end.message in text_of(backend, order)
    finally:
        backend.close()
