"""Who runs as whom, decided behind all doors. The accounts need not exist: the runs are held."""

from __future__ import annotations

import pytest

from rota.app.accounts import Accounts
from rota.app.authz import Principal, Role
from rota.app.commands import Edit, Rerun, Submit, SubmitMany
from rota.app.errors import Forbidden, Invalid
from tests.app.house import House

ADMIN = Principal("boss", Role.ADMIN)
ME, ROBOT = Principal("me", Role.USER), Principal("robot", Role.AGENT, acts_for="me")
GUEST = Principal("guest", Role.USER)
PERSONS = frozenset({"me", "you", "lent"})


def of_root(run_as: str = "") -> Accounts:
    return Accounts(root=True, own="root", run_as=run_as, is_persons=PERSONS.__contains__)


@pytest.fixture
def rooted(build) -> House:
    """A house of root's; `me` and `you` have accounts on its machine, `guest` has none."""
    house: House = build()
    house.accounts = of_root()
    return house.open()


# -- the choice --------------------------------------------------------------------------------------------------------
def test_an_admin_chooses_and_is_root_without_a_word():
    for asked, given in ((None, None), ("", None), ("you", "you"), ("nowhere", "nowhere")):
        assert of_root().choose(ADMIN, asked) == given


def test_a_person_and_its_agent_are_that_person():
    for who in (ME, ROBOT):
        assert of_root().choose(who, None) == of_root().choose(who, "me") == "me"
        for other in ("root", "you", "robot", "nowhere", "a\0b"):
            with pytest.raises(Forbidden) as refusal:
                of_root().choose(who, other)
            assert refusal.value.field == "account"


def test_nobody_but_an_admin_is_root():
    for who, why in (
        (Principal("root", Role.USER), r"^root \(user\) may not run anything as root; use a token of a person"),
        (Principal("bot", Role.AGENT, "root"), r"^bot \(agent\) may not run anything as root; use a token of a person"),
        (GUEST, "guest has no account on this machine"),
    ):
        with pytest.raises(Forbidden, match=why):
            of_root().choose(who, None)
        assert of_root("lent").choose(who, None) == "lent"
    for broken in (of_root("root"), of_root("nowhere")):
        with pytest.raises(Forbidden):
            broken.choose(GUEST, None)


def test_who_has_no_account_may_be_lent_one():
    assert of_root("lent").choose(GUEST, None) == "lent"
    assert of_root("lent").choose(ME, None) == "me", "one's own comes first"
    for who in (ME, ROBOT):
        with pytest.raises(Forbidden, match="may run as me, not as 'lent'"):
            of_root("lent").choose(who, "lent")  # runs of others have it


def test_elsewhere_there_is_one_account_for_all():
    here = Accounts(own="lab")
    assert here.choose(ME, None) is here.choose(ADMIN, "lab") is None
    for who in (ME, ADMIN):
        with pytest.raises(Forbidden, match="does not run as root"):
            here.choose(who, "root")


def test_who_lets_somebody_in_is_told_that_they_could_run_nothing():
    assert "guest cannot run anything here without an account" in of_root().warning("guest")
    assert "only an admin runs anything as root; use a token of a person" in of_root().warning("root")
    assert of_root().warning("me") == of_root("lent").warning("guest") == Accounts(own="lab").warning("guest") == ""


# -- in the house ------------------------------------------------------------------------------------------------------
def test_no_submit_of_a_persons_gets_the_servers_own_account(rooted):
    """Whatever a door forgets to ask: here is where a run gets its account."""
    spec = rooted.spec("true")
    assert rooted.do(Submit(spec, held=True), ME).spec.account == "me"
    assert rooted.rota.try_out(ROBOT, Submit(spec)).spec.account == "me"
    (run,) = rooted.do(SubmitMany((Submit(spec, held=True),)), ROBOT)
    assert run.spec.account == "me"
    with pytest.raises(Forbidden):
        rooted.do(Submit(spec), GUEST)
    for account in ("root", "you", "robot"):
        with pytest.raises(Forbidden):
            rooted.do(Submit(rooted.spec("true", account=account), held=True), ME)
        with pytest.raises(Forbidden):
            rooted.do(SubmitMany((Submit(rooted.spec("true", account=account), held=True),)), ROBOT)
    assert rooted.do(Submit(spec, held=True), ADMIN).spec.account is None


def test_what_somebody_may_not_do_is_said_before_what_they_lack(rooted):
    with pytest.raises(Forbidden, match="viewer"):
        rooted.do(Submit(rooted.spec("true")), Principal("guest", Role.VIEWER))
    with pytest.raises(Invalid, match="priority: 4 is above what you may ask for"):
        rooted.do(Submit(rooted.spec("true", priority=4)), Principal("bot", Role.AGENT, acts_for="guest"))


def test_the_same_key_is_the_same_request_whatever_account_it_got(rooted):
    first = rooted.do(Submit(rooted.spec("true"), held=True, key="k"), ME)
    assert rooted.do(Submit(rooted.spec("true"), held=True, key="k"), ME).id == first.id


def test_what_an_admin_made_for_somebody_lends_nobody_its_account(rooted):
    for account in (None, "you"):
        run = rooted.do(Submit(rooted.spec("true", account=account), user="me", held=True), ADMIN)
        for who in (ME, ROBOT):
            for change in (Rerun(run.id, held=True), Edit(run.id, argv=("id",)), Edit(run.id, workdir="/")):
                with pytest.raises(Forbidden, match="does not run as me"):
                    rooted.do(change, who)
        assert rooted.do(Edit(run.id, name="mine"), ME).spec.name == "mine"
        again = rooted.do(Rerun(run.id, argv=("id",), held=True), ADMIN)
        assert (again.user, again.spec.account) == ("me", account)


@pytest.mark.parametrize("author", [Role.USER, Role.AGENT])
def test_what_a_person_wrote_and_an_admin_starts_has_that_persons_rights(rooted, author):
    def started(**asked):
        return rooted.do(SubmitMany((Submit(rooted.spec("true", **asked), user="me", author=author),)), ADMIN)[0]

    assert started().spec.account == "me"
    for account in ("root", "you"):
        with pytest.raises(Forbidden, match="may run as me"):
            started(account=account)
    with pytest.raises(Invalid, match="grace_s"):
        started(grace_s=80_000.0)
    if author is Role.AGENT:
        with pytest.raises(Invalid, match="priority: 4 is above"):
            started(priority=4)
    with pytest.raises(Forbidden, match="has no account on this machine"):
        rooted.do(Submit(rooted.spec("true"), user="guest", author=author), ADMIN)


def test_nobody_gets_an_admins_rights_by_starting_what_an_admin_wrote(rooted):
    submit = Submit(rooted.spec("true"), held=True, author=Role.ADMIN)
    assert rooted.do(submit, ME).spec.account == "me"
    assert rooted.do(submit, ADMIN).spec.account is None
    with pytest.raises(Forbidden, match="may run as me"):
        rooted.do(Submit(rooted.spec("true", account="root"), author=Role.ADMIN), ME)


def test_ones_own_is_changed_and_repeated_as_ever(rooted):
    run = rooted.do(Submit(rooted.spec("true"), held=True), ME)
    assert rooted.do(Edit(run.id, argv=("id",)), ROBOT).spec.argv == ("id",)
    assert rooted.do(Rerun(run.id, held=True), ROBOT).spec.account == "me"
