"""Who is let in: the gate, with a real store behind it and a clock in the test's hand."""

from __future__ import annotations

import base64
import json
import os
import pwd
import socket
from pathlib import Path

import pytest

from rota.adapters.accounts import Accounts
from rota.api import assemble, tokens
from rota.api import gate as g
from rota.api.gate import Gate, Known, Turned
from rota.api.house import House
from rota.api.passed import is_roots
from rota.api.tokens import Token
from rota.app.authz import Principal, Role
from rota.app.ports import Account
from tests.api.kit import Clock, gate_of, issue, revoke


def come(gate: Gate, secret: str | None = None, **more: object) -> Known | Turned:
    given: dict[str, object] = {"source": "10.0.0.1", "cookie": None, "uid": None, **more}
    return gate.admit(secret=secret, **given)  # type: ignore[arg-type]


def name(found: Known | Turned) -> tuple[str, str, str]:
    assert isinstance(found, Known), found
    return found.who.name, found.who.role.value, found.by


@pytest.mark.parametrize("left", [b"", b"short"])
def test_a_signing_key_that_was_cut_short_is_replaced(tmp_path: Path, left: bytes) -> None:
    """Anybody could sign sessions with an empty one."""
    path = tmp_path / "session.key"
    path.write_bytes(left)
    secret = assemble._own_secret(path)
    assert len(secret) == 32
    assert (path.read_bytes(), assemble._own_secret(path)) == (secret, secret)


class TestOpenAndClosed:
    def test_without_any_token_everybody_is_let_in_and_is_an_admin(self, house: House) -> None:
        gate = gate_of(house.service)
        assert not gate.closed
        assert name(come(gate)) == ("anonymous", "admin", "open")

    def test_a_header_nobody_asked_for_is_no_offence(self, house: House) -> None:
        gate = gate_of(house.service)
        assert all(name(come(gate, "whatever"))[2] == "open" for _ in range(100))

    def test_the_shared_token_closes_it_and_is_an_admin(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        assert gate.closed
        assert come(gate) == g.UNAUTHORISED
        assert come(gate, "Sesame") == g.UNAUTHORISED
        assert come(gate, "sesame ") == g.UNAUTHORISED
        assert name(come(gate, "sesame")) == ("shared", "admin", "shared")

    def test_the_first_token_closes_it_at_once(self, house: House) -> None:
        gate = gate_of(house.service)
        secret, _ = issue(house.service, gate)
        assert gate.closed
        assert come(gate) == g.UNAUTHORISED
        assert name(come(gate, secret)) == ("ann", "user", "token")

    def test_it_stays_closed_when_the_last_token_has_expired(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock)
        secret, _ = issue(house.service, gate, expires_s=60)
        clock.at += 59.9
        assert isinstance(come(gate, secret), Known)
        clock.at += 0.2
        assert come(gate, secret) == come(gate) == g.UNAUTHORISED
        clock.at += 10 * 365 * 86400
        assert come(gate) == g.UNAUTHORISED
        assert gate_of(house.service, clock).closed, "also after a restart"

    def test_it_stays_closed_when_the_last_token_is_revoked(self, house: House) -> None:
        gate = gate_of(house.service)
        secret, token = issue(house.service, gate)
        revoke(house.service, gate, token)
        assert come(gate, secret) == come(gate) == g.UNAUTHORISED
        again = gate_of(house.service)
        assert again.closed
        assert come(again, secret) == g.UNAUTHORISED, "a restart does not bring it back"

    def test_a_restart_knows_them_all(self, house: House) -> None:
        gate = gate_of(house.service)
        made = [issue(house.service, gate, f"user{i}") for i in range(25)]
        again = gate_of(house.service)
        assert {token.id for token in again.all_tokens()} == {token.id for _, token in made}
        assert all(name(come(again, secret))[0] == token.user for secret, token in made)


class TestTokens:
    def test_only_the_whole_token_counts(self, house: House) -> None:
        gate = gate_of(house.service, login_tries=1000)
        secret, token = issue(house.service, gate)
        close = (
            secret[:-1],
            secret + "a",
            secret.upper(),
            secret.lower(),
            secret[5:],
            token.id,
            token.hash,
            " ",
            "rota_",
        )
        assert all(come(gate, guess) == g.UNAUTHORISED for guess in close if guess != secret)

    def test_an_agent_owns_what_its_person_owns(self, house: House) -> None:
        gate = gate_of(house.service)
        secret, _ = issue(house.service, gate, "bot", "agent", acts_for="ann")
        found = come(gate, secret)
        assert isinstance(found, Known)
        assert found.who == Principal("bot", Role.AGENT, "ann")
        assert found.who.owner == "ann"

    def test_a_token_of_bytes_that_are_no_text_is_only_wrong(self, house: House) -> None:
        gate = gate_of(house.service, shared="pässwört")
        assert come(gate, b"\xff\xfe".decode("utf-8", "surrogateescape")) == g.UNAUTHORISED
        assert isinstance(come(gate, "pässwört"), Known)


class TestGuessing:
    def test_ten_wrong_ones_a_minute_then_wait(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock, shared="sesame")
        assert [come(gate, f"guess{i}") for i in range(10)] == [g.UNAUTHORISED] * 10
        found = come(gate, "guess")
        assert isinstance(found, Turned)
        assert (found.status, found.retry_after_s) == (429, 60.0)
        right = come(gate, "sesame")
        assert isinstance(right, Turned), "who never was right here cannot be told from a guesser"
        assert right.status == 429
        clock.at += 6.1
        assert come(gate, "another") == g.UNAUTHORISED, "one every six seconds"
        again = come(gate, "and another")
        assert isinstance(again, Turned)
        assert again.status == 429

    def test_other_sources_are_not_disturbed(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        for i in range(20):
            come(gate, f"guess{i}")
        assert isinstance(come(gate, "sesame", source="10.0.0.2"), Known)

    def test_many_sources_together_have_a_limit_too(self, house: House) -> None:
        """Else whoever has many addresses guesses as fast as with none."""
        clock = Clock()
        gate = gate_of(house.service, clock, shared="sesame")
        assert isinstance(come(gate, "sesame", source="trusted"), Known)
        found = [come(gate, f"guess{i}", source=f"10.0.{i}.1") for i in range(200)]
        assert found.count(g.UNAUTHORISED) == 100
        late = come(gate, "sesame", source="10.9.9.9")
        assert isinstance(late, Turned)
        assert late.status == 429
        assert isinstance(come(gate, "sesame", source="trusted"), Known), "where it was right before it is no guess"
        secret, _ = issue(house.service, gate)
        assert isinstance(come(gate, secret, source="10.9.9.9"), Known), "nor is a token of one's own"
        clock.at += 61
        assert isinstance(come(gate, "sesame", source="10.9.9.9"), Known)

    def test_without_a_shared_token_there_is_nothing_to_guess_together(self, house: House) -> None:
        gate = gate_of(house.service)
        issue(house.service, gate)
        assert {come(gate, f"guess{i}", source=f"10.0.{i}.1") for i in range(200)} == {g.UNAUTHORISED}

    def test_who_was_right_before_goes_on(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        secret, token = issue(house.service, gate)
        assert isinstance(come(gate, secret), Known)
        for i in range(50):
            come(gate, f"guess{i}")
        assert isinstance(come(gate, secret), Known)
        revoke(house.service, gate, token)
        assert come(gate, secret) == g.UNAUTHORISED, "but not with a token that is no longer good"

    def test_a_token_that_is_right_passes_whatever_others_guessed_there(self, house: House) -> None:
        """Behind a proxy, or after a restart, nobody has been right here before."""
        before = gate_of(house.service)
        secret, token = issue(house.service, before)
        gate = gate_of(house.service, shared="sesame")
        for i in range(50):
            come(gate, f"guess{i}")
        assert name(come(gate, secret)) == ("ann", "user", "token")
        assert isinstance(gate.redeem("10.0.0.1", secret), str)
        assert isinstance(gate.redeem("10.0.0.1", gate.new_code(token.id)), str)
        shared = gate.redeem("10.0.0.1", "sesame")
        assert isinstance(shared, Turned), "which a person may have made up: it is guarded by the limit alone"
        assert shared.status == 429

    def test_a_token_that_was_good_once_is_no_guess(self, house: House) -> None:
        """A script that goes on with an old token must not shut out the others."""
        gate = gate_of(house.service, shared="sesame")
        secret, token = issue(house.service, gate)
        revoke(house.service, gate, token)
        assert all(come(gate, secret) == g.UNAUTHORISED for _ in range(50))
        assert isinstance(come(gate, "sesame"), Known)

    def test_no_token_at_all_is_no_guess(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        assert all(come(gate) == g.UNAUTHORISED for _ in range(100))
        assert isinstance(come(gate, "sesame"), Known)

    def test_what_is_remembered_is_bounded(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(g, "REMEMBERED", 5)
        gate = gate_of(house.service, shared="sesame")
        for i in range(50):
            assert isinstance(come(gate, "sesame", source=f"10.0.1.{i}"), Known)
        assert len(gate._trusted) == 5


class TestBrowsers:
    def session(self, house: House, clock: Clock) -> tuple[Gate, str, Token]:
        gate = gate_of(house.service, clock)
        _, token = issue(house.service, gate)
        cookie = gate.redeem("10.0.0.1", gate.new_code(token.id))
        assert isinstance(cookie, str)
        return gate, cookie, token

    def test_a_code_is_good_once(self, house: House) -> None:
        gate = gate_of(house.service)
        _, token = issue(house.service, gate)
        code = gate.new_code(token.id)
        assert isinstance(gate.redeem("here", code), str)
        again = gate.redeem("here", code)
        assert isinstance(again, Turned)
        assert again.status == 401

    def test_whose_a_code_is_can_be_asked_without_spending_it(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        secret, token = issue(house.service, gate)
        code = gate.new_code(token.id)
        for what, who in ((code, "ann"), (secret, "ann"), (gate.new_code(g.SHARED_ID), "shared"), ("sesame", "shared")):
            found = [gate.whose("here", what) for _ in range(2)]
            assert [one.name for one in found if isinstance(one, Principal)] == [who, who]
            assert isinstance(gate.redeem("here", what), str)
        assert isinstance(gate.whose("here", code), Turned)
        answers = [gate.whose("there", f"guess{i}") for i in range(11)]
        assert [answer.status for answer in answers if isinstance(answer, Turned)] == [401] * 10 + [429]

    def test_a_code_is_good_for_an_hour(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock)
        _, token = issue(house.service, gate)
        early, late = gate.new_code(token.id), gate.new_code(token.id)
        clock.at += 3599
        assert isinstance(gate.redeem("here", early), str)
        clock.at += 2
        assert isinstance(gate.redeem("here", late), Turned)

    def test_a_code_of_a_revoked_token_is_worth_nothing(self, house: House) -> None:
        gate = gate_of(house.service)
        _, token = issue(house.service, gate)
        code = gate.new_code(token.id)
        revoke(house.service, gate, token)
        assert isinstance(gate.redeem("here", code), Turned)

    def test_a_token_itself_logs_in_too(self, house: House) -> None:
        gate = gate_of(house.service)
        secret, _ = issue(house.service, gate)
        cookie = gate.redeem("here", secret)
        assert isinstance(cookie, str)
        assert name(come(gate, cookie=cookie)) == ("ann", "user", "cookie")
        assert secret not in cookie

    def test_guessed_codes_are_limited_like_tokens(self, house: House) -> None:
        gate = gate_of(house.service)
        _, token = issue(house.service, gate)
        answers = [gate.redeem("here", f"guess{i}") for i in range(11)]
        assert [answer.status for answer in answers if isinstance(answer, Turned)] == [401] * 10 + [429]
        assert isinstance(gate.redeem("here", gate.new_code(token.id)), str), "which no guess could have found"

    def test_codes_are_bounded(self, house: House) -> None:
        gate = gate_of(house.service)
        _, token = issue(house.service, gate)
        _, other = issue(house.service, gate, user="ben")
        others = gate.new_code(other.id)
        codes = [gate.new_code(token.id) for _ in range(g.MAX_CODES + 1)]
        assert isinstance(gate.redeem("a", codes[-g.CODES_OF_ONE - 1]), Turned), "the oldest had to go"
        assert isinstance(gate.redeem("b", codes[-g.CODES_OF_ONE]), str)
        assert isinstance(gate.redeem("c", others), str), "and nobody else's"

    def test_links_of_the_shared_token_are_enough_for_a_team(self, house: House) -> None:
        gate = gate_of(house.service, shared="open sesame")
        codes = [gate.new_code(g.SHARED_ID) for _ in range(3 * g.CODES_OF_ONE)]
        assert all(isinstance(gate.redeem("a", code), str) for code in codes)
        again = gate.redeem("a", codes[0])
        assert isinstance(again, Turned)
        assert "used already, is too old or gave way to newer links" in again.why

    def test_codes_of_all_are_bounded(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(g, "MAX_CODES", 2)
        gate = gate_of(house.service)
        _, token = issue(house.service, gate)
        codes = [gate.new_code(token.id) for _ in range(3)]
        assert isinstance(gate.redeem("a", codes[0]), Turned)
        assert isinstance(gate.redeem("b", codes[1]), str)

    def test_logging_out_ends_that_session_and_no_other(self, house: House) -> None:
        clock = Clock()
        gate, cookie, token = self.session(house, clock)
        other = gate.redeem("10.0.0.1", gate.new_code(token.id))
        assert isinstance(other, str)
        gate.end_session(cookie)
        gate.end_session("nonsense")
        assert come(gate, cookie=cookie) == g.UNAUTHORISED
        assert name(come(gate, cookie=other)) == ("ann", "user", "cookie")
        clock.at += 8 * 86400
        late = gate.redeem("10.0.0.1", gate.new_code(token.id))
        assert isinstance(late, str)
        gate.end_session(late)
        assert len(gate._ended[token.id].each) == 1, "those that are over by themselves are forgotten"

    def test_logging_out_ends_what_the_session_has_open(self, house: House) -> None:
        gate, cookie, _ = self.session(house, Clock())
        known = come(gate, cookie=cookie)
        assert isinstance(known, Known)
        assert gate.holds(known)
        gate.end_session(cookie)
        assert not gate.holds(known)

    def test_nobody_brings_back_a_session_that_was_logged_out(self, house: House) -> None:
        clock = Clock()
        gate, cookie, token = self.session(house, clock)
        secret, _ = issue(house.service, gate, user="ben")

        def come_and_go(code: str) -> None:
            made = gate.redeem("10.0.0.1", code)
            assert isinstance(made, str)
            gate.end_session(made)

        gate.end_session(cookie)
        for _ in range(3 * g.ENDED_OF_ONE):
            come_and_go(secret)
        assert len(gate._ended[token.id].each) == 1, "another's are none of ours"
        clock.at += 1.0
        for _ in range(3 * g.ENDED_OF_ONE):
            come_and_go(gate.new_code(token.id))
        assert len(gate._ended[token.id].each) <= g.ENDED_OF_ONE
        assert come(gate, cookie=cookie) == g.UNAUTHORISED
        clock.at += 1.0
        new = gate.redeem("10.0.0.1", gate.new_code(token.id))
        assert isinstance(new, str)
        assert isinstance(come(gate, cookie=new), Known)

    def test_a_session_ends_after_a_week(self, house: House) -> None:
        clock = Clock()
        gate, cookie, _ = self.session(house, clock)
        clock.at += 7 * 86400 - 1
        assert name(come(gate, cookie=cookie)) == ("ann", "user", "cookie")
        clock.at += 2
        assert come(gate, cookie=cookie) == g.UNAUTHORISED

    def test_a_session_ends_with_its_token(self, house: House) -> None:
        gate, cookie, token = self.session(house, Clock())
        revoke(house.service, gate, token)
        assert come(gate, cookie=cookie) == g.UNAUTHORISED

    def test_it_outlives_a_restart_but_not_another_key(self, house: House) -> None:
        clock = Clock()
        _, cookie, _ = self.session(house, clock)
        assert isinstance(come(gate_of(house.service, clock), cookie=cookie), Known)
        assert come(gate_of(house.service, clock, secret=b"t" * 32), cookie=cookie) == g.UNAUTHORISED

    def test_forged_ones_are_not_believed(self, house: House) -> None:
        clock = Clock()
        gate, cookie, _ = self.session(house, clock)
        _, admin = issue(house.service, gate, "root", "admin")
        payload, _, mac = cookie.partition(".")
        other = base64.urlsafe_b64encode(json.dumps([admin.id, int(clock.at) + 10**6]).encode()).decode()
        forged = [
            f"{other}.{mac}", payload, f"{payload}.", f".{mac}", f"{payload}.{mac[:-1]}", f"{payload}.{mac}0",
            f"{payload[:-1]}é.{mac}", f"{payload}.{'é' * 64}", f"{payload}.{mac}.{mac}", "", ".", "a" * 100_000, "null",
        ]  # fmt: skip
        assert all(come(gate, cookie=one) == g.UNAUTHORISED for one in forged)
        assert isinstance(come(gate, cookie=cookie), Known)
        assert len(gate._guesses._left) == 0, "a stale cookie is no guess: browsers send it on their own"


class TestTheSharedTokensSession:
    def test_it_logs_in_and_is_bound_to_that_token(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock, shared="sesame")
        cookie = gate.redeem("here", "sesame")
        assert isinstance(cookie, str)
        assert name(come(gate, cookie=cookie)) == ("shared", "admin", "cookie")
        assert isinstance(come(gate_of(house.service, clock, shared="sesame"), cookie=cookie), Known), "over a restart"
        assert come(gate_of(house.service, clock, shared="Sesame"), cookie=cookie) == g.UNAUTHORISED
        issue(house.service, gate)
        assert come(gate_of(house.service, clock), cookie=cookie) == g.UNAUTHORISED, "there is none any more"
        clock.at += g.SESSION_LIVES_S + 1
        assert come(gate, cookie=cookie) == g.UNAUTHORISED

    def test_a_link_does_too(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame")
        code = gate.new_code(g.SHARED_ID)
        cookie = gate.redeem("here", code)
        assert isinstance(cookie, str)
        assert name(come(gate, cookie=cookie))[0] == "shared"
        assert isinstance(gate.redeem("here", code), Turned)

    def test_who_sees_the_cookie_cannot_try_words_on_it(self, house: House) -> None:
        cookie = gate_of(house.service, shared="sesame").redeem("here", "sesame")
        assert isinstance(cookie, str)
        inside = base64.urlsafe_b64decode(cookie.partition(".")[0]).decode()
        assert tokens.hash_of("sesame")[:16] not in inside
        other = gate_of(house.service, shared="sesame", secret=b"t" * 32).redeem("here", "sesame")
        assert isinstance(other, str)
        assert json.loads(inside)[0] not in base64.urlsafe_b64decode(other.partition(".")[0]).decode()

    def test_there_is_none_without_a_shared_token(self, house: House) -> None:
        gate = gate_of(house.service)
        issue(house.service, gate)
        payload = base64.urlsafe_b64encode(json.dumps(["", int(gate._now()) + 1000]).encode()).decode()
        assert come(gate, cookie=f"{payload}.{gate._mac(payload)}") == g.UNAUTHORISED


class TestStillWelcome:
    """For streams, which outlast the moment they were let in."""

    def test_until_the_token_is_revoked_or_expires(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock)
        (lasting, token), (short, _) = issue(house.service, gate), issue(house.service, gate, "ben", expires_s=60)
        ann, ben = come(gate, lasting), come(gate, short)
        assert isinstance(ann, Known)
        assert isinstance(ben, Known)
        assert gate.holds(ann)
        assert gate.holds(ben)
        clock.at += 61
        assert gate.holds(ann)
        assert not gate.holds(ben)
        revoke(house.service, gate, token)
        assert not gate.holds(ann)

    def test_a_browser_until_its_session_or_its_token_ends(self, house: House) -> None:
        clock = Clock()
        gate = gate_of(house.service, clock, shared="sesame")
        secret, token = issue(house.service, gate)
        cookies = [gate.redeem("here", word) for word in (secret, "sesame")]
        ann, shared = [come(gate, cookie=cookie) for cookie in cookies]
        assert isinstance(ann, Known)
        assert isinstance(shared, Known)
        revoke(house.service, gate, token)
        assert (gate.holds(ann), gate.holds(shared)) == (False, True)
        clock.at += g.SESSION_LIVES_S + 1
        assert not gate.holds(shared)

    def test_who_needed_no_token_until_there_is_one(self, house: House) -> None:
        gate = gate_of(house.service)
        anyone, peer = come(gate), come(gate, uid=0)
        assert isinstance(anyone, Known)
        assert isinstance(peer, Known)
        assert gate.holds(anyone)
        issue(house.service, gate)
        assert (gate.holds(anyone), gate.holds(peer)) == (False, True)


class TestSocket:
    def test_the_kernel_says_who(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame", server_uid=os.geteuid())
        me = pwd.getpwuid(os.geteuid()).pw_name
        assert name(come(gate, uid=os.geteuid())) == (me, "admin", "socket")
        assert name(come(gate, uid=0))[1] == "admin"
        nobody = pwd.getpwnam("nobody")
        gate = gate_of(house.service, shared="sesame", server_uid=0)
        assert name(come(gate, uid=nobody.pw_uid)) == ("nobody", "user", "socket")
        gate = gate_of(house.service, shared="sesame", server_uid=999)
        assert name(come(gate, uid=nobody.pw_uid)) == ("nobody", "user", "socket"), "a system account serves everybody"

    @pytest.mark.parametrize("shared", ["", "sesame"])
    def test_a_persons_own_server_needs_a_token_of_other_accounts(self, house: House, shared: str) -> None:
        """Their jobs would run as that person. Whether a token exists makes no difference."""
        gate = gate_of(house.service, shared=shared, server_uid=4242)
        nobody = pwd.getpwnam("nobody").pw_uid
        for secret in (None, "") if shared else (None, "", "whatever"):
            turned = come(gate, secret, uid=nobody)
            assert isinstance(turned, g.Turned) and turned.status == 401
            assert "runs every job as uid4242" in turned.why and "rota token create --user nobody" in turned.why
        assert name(come(gate, uid=0)) == ("root", "admin", "socket")
        assert name(come(gate, uid=4242)) == ("uid4242", "admin", "socket")
        secret, _ = issue(house.service, gate, "nobody")
        assert name(come(gate, secret, uid=nobody)) == ("nobody", "user", "token")

    def test_a_server_of_the_machine_serves_all_accounts_whichever_it_runs_as(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame", server_uid=4242, for_machine=True)
        assert name(come(gate, uid=pwd.getpwnam("nobody").pw_uid)) == ("nobody", "user", "socket")
        assert name(come(gate, uid=4242)) == ("uid4242", "admin", "socket")
        assert isinstance(come(gate, uid=3_999_999), g.Turned)

    def test_a_server_is_the_machines_where_root_made_its_socket(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind("")
            assert not is_roots(abstract)
            one.bind(str(tmp_path / "s"))
            assert is_roots(one) == (os.geteuid() == 0)
            if os.geteuid() == 0:
                os.chown(tmp_path / "s", 4242, -1)
                assert not is_roots(one)
            (tmp_path / "s").unlink()
            assert not is_roots(one)

    def test_an_id_without_an_account_is_nobody(self, house: House) -> None:
        """An account with subordinate ids would else be as many people as it has ids."""
        gate = gate_of(house.service, shared="sesame", server_uid=os.geteuid())
        turned = come(gate, uid=3_999_999)
        assert isinstance(turned, g.Turned) and turned.status == 401
        assert "user id 3999999 has no account here" in turned.why and "token" in turned.why

    @pytest.mark.parametrize("secret", [None, "whatever"])
    def test_a_server_without_tokens_knows_the_socket_by_its_account_too(
        self, house: House, secret: str | None
    ) -> None:
        """What runs in a container with the socket would else be an admin, and an ordinary account with any token."""
        for account in (Accounts().of, lambda uid: Account("ann", 1000, subordinate=True)):
            gate = gate_of(house.service, account=account)
            turned = come(gate, secret, uid=3_999_999)
            assert isinstance(turned, g.Turned) and turned.status == 401
            assert "show a token" in turned.why and "rota token create" in turned.why
        gate = gate_of(house.service, server_uid=0)
        assert name(come(gate, secret, uid=pwd.getpwnam("nobody").pw_uid)) == ("nobody", "user", "socket")
        assert name(come(gate, secret, uid=0)) == ("root", "admin", "socket")

    def test_a_subordinate_id_has_not_the_powers_of_its_account(self, house: House) -> None:
        """It is what runs in a container of the account, and may be anybody's program."""
        anns = Account("ann", 1000, subordinate=True)
        gate = gate_of(house.service, shared="sesame", server_uid=os.geteuid(), account=lambda uid: anns)
        turned = come(gate, uid=3_999_999)
        assert isinstance(turned, g.Turned) and turned.status == 401
        assert "user id 3999999 is a subordinate id of ann" in turned.why
        assert name(come(gate, "sesame", uid=3_999_999)) == ("shared", "admin", "shared")

    def test_a_wrong_token_is_wrong_there_too(self, house: House) -> None:
        gate = gate_of(house.service, shared="sesame", server_uid=os.geteuid())
        assert come(gate, "wrong", uid=os.geteuid()) == g.UNAUTHORISED
        assert name(come(gate, "sesame", uid=3_999_999)) == ("shared", "admin", "shared")
