"""Who am I; tokens of people and agents; logging a browser in."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rota.api import tokens
from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body, Exact, Word
from rota.api.depends import Caller, DryRun, HouseDep
from rota.api.faults import faults
from rota.api.gate import COOKIE, SESSION_LIVES_S, Known, Turned
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.render.login import confirmation, page
from rota.api.router import Router
from rota.app.authz import Act, Role, authorise
from rota.app.commands import PutRecord
from rota.app.errors import NotFound

router = Router("identity")
making = asyncio.Lock()  # a name is looked at and taken before the next one is looked at


class Me(BaseModel):
    name: str
    role: str
    acts_for: str
    known_by: str
    token_id: str = Field(description="Of the token you came with; `shared` for the shared one, empty without any.")
    sees_all: bool = Field(description="Whether other people's runs are shown to you.")


class NewToken(Exact):
    user: Word = Field(examples=["ann"])
    role: Word = Field("user", description="admin, user, agent or viewer")
    expires_seconds: Annotated[float, Field(gt=0, le=tokens.LONGEST_S)] | None = None
    acts_for: Word = Field("", description="An agent's person.")
    note: Annotated[str, Field(max_length=200)] = ""


class TokenShown(BaseModel):
    id: str
    user: str
    role: str
    acts_for: str
    note: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class TokenMade(TokenShown):
    token: str = Field(description="Shown this once; only its hash is kept.")
    warning: str | None = Field(None, description="What stands in the way of its use; there where something does.")


class Link(BaseModel):
    path: str = Field(description="To open in a browser, once, within an hour.")
    url: str | None = Field(description="The whole of it, where the server knows how it is reached.")


class Login(Body):
    code: Word = Field(description="The code of a login link, or a token.")


@router.get("/whoami", summary="Who the server takes you for", responses={200: {"model": Me}, **faults()})
async def whoami(house: HouseDep, request: Request, who: Caller) -> Json:
    known: Known = request.scope["rota.known"]
    me = {"name": who.name, "role": who.role.value, "acts_for": who.acts_for}
    return Json({**me, "known_by": known.by, "token_id": known.token_id, "sees_all": not house.only_own(who)})


@router.get(
    "/tokens", summary="All tokens, without their secrets", responses={200: {"model": list[TokenShown]}, **faults()}
)
async def list_tokens(house: HouseDep, who: Caller) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    return Json([token.public() for token in house.gate.all_tokens()])


@router.post("/tokens", summary="Make a token", responses={200: {"model": TokenMade}, **faults(409)})
async def make_token(house: HouseDep, who: Caller, body: NewToken, dry_run: DryRun = False) -> Json:
    """A field that is not known here is refused: a token must not live longer, or be more, than was meant."""
    authorise(who, Act.MANAGE_TOKENS)
    secret, token = tokens.make(
        body.user, body.role, time.time(), expires_s=body.expires_seconds, acts_for=body.acts_for, note=body.note
    )
    warning = await look_up(house, who, _warning, house, token)
    async with making if not dry_run else nullcontext():
        tokens.must_be_told_apart(token, house.gate.all_tokens())
        await act(house, who, PutRecord(token.draft(), fresh=True), dry_run)
        if not dry_run:
            house.gate.learn(token)
    if dry_run:
        return Json({**token.public(), "token": "", **warning, "dry_run": True})
    return Json({**token.public(), "token": secret, **warning})


@router.delete("/tokens/{token_id}", summary="Revoke a token", responses={200: {"model": TokenShown}, **faults(404)})
async def revoke_token(house: HouseDep, who: Caller, token_id: str, dry_run: DryRun = False) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    token = house.gate.token(token_id)
    if token is None:
        raise NotFound(f"no token {token_id[:50]!r}; see: rota token list (GET /tokens)", "token_id")
    if token.revoked_at is None:
        token = replace(token, revoked_at=time.time())
        await act(house, who, PutRecord(token.draft()), dry_run)
        if not dry_run:
            house.gate.learn(token)
    return Json({**token.public(), **({"dry_run": True} if dry_run else {})})


@router.post(
    "/tokens/{token_id}/link",
    summary="A login link for a browser, good once",
    responses={200: {"model": Link}, **faults(404)},
)
async def login_link(request: Request, house: HouseDep, who: Caller, token_id: str) -> Json:
    """For one's own token (`GET /whoami` names it; `shared` is the shared one), and for an admin any other's."""
    known: Known = request.scope["rota.known"]
    if known.token_id != token_id or known.by == "cookie":  # a session must not make itself last for ever
        authorise(who, Act.MANAGE_TOKENS)
        token = house.gate.token(token_id)
        if token is None or not token.valid(time.time()):
            raise NotFound(f"no valid token {token_id[:50]!r}; see: rota token list (GET /tokens)", "token_id")
    path = f"/login?code={house.gate.new_code(token_id)}"
    base = _own_url(house)
    return Json({"path": path, "url": f"{base}{path}" if base else None})


@router.get("/login", include_in_schema=False)
async def login_by_link(
    request: Request, house: HouseDep, code: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    """At once where a person opened the link by themselves. Another site may have led here with a link of somebody
    else's, whose runs and secrets would be that one's: there the person says so by a button, which posts the code."""
    source = request.scope["rota.source"]
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        who = house.gate.whose(source, code)
        return _not_logged_in(request, who) if isinstance(who, Turned) else HTMLResponse(confirmation(who))
    cookie = house.gate.redeem(source, code)
    if isinstance(cookie, Turned):
        return _not_logged_in(request, cookie)
    return _with_session(RedirectResponse("/", 303), cookie)


def _not_logged_in(request: Request, why: Turned) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(page(why.why), why.status, _wait(why))
    return _turned(why)


@router.post(
    "/login", summary="Begin a browser session", responses={200: {"description": "The cookie is set."}, **faults()}
)
async def login(request: Request, house: HouseDep, body: Login) -> Response:
    cookie = house.gate.redeem(request.scope["rota.source"], body.code)
    if isinstance(cookie, Turned):
        return _turned(cookie)
    return _with_session(Json({"message": "Logged in"}), cookie)


@router.post("/logout", summary="End the browser session", responses=faults())
async def logout(request: Request, house: HouseDep) -> Json:
    house.gate.end_session(request.cookies.get(COOKIE, ""))
    answer = Json({"message": "Logged out"})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _warning(house: House, token: tokens.Token) -> dict[str, str]:
    """An admin runs as the server itself, and a viewer runs nothing. May ask a directory server far away."""
    runs = token.role in (Role.USER, Role.AGENT)
    text = house.service.accounts.warning(token.acts_for or token.user) if runs else ""
    return {"warning": text} if text else {}


def _turned(away: Turned) -> Response:
    return Json({"detail": away.why}, away.status, _wait(away))


def _wait(away: Turned) -> dict[str, str] | None:
    return {"Retry-After": str(math.ceil(away.retry_after_s))} if away.status == 429 else None


def _own_url(house: House) -> str:
    """As it was told, or as it listens; "" where the port was left to chance."""
    settings = house.settings
    if settings.server_url or not settings.port:
        return settings.server_url.rstrip("/")
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host  # noqa: S104 - not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _with_session(answer: Response, cookie: str) -> Response:
    answer.set_cookie(COOKIE, cookie, max_age=int(SESSION_LIVES_S), path="/", httponly=True, samesite="strict")
    return answer
