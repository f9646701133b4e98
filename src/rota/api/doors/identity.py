"""Who am I; tokens of people and agents; logging a browser in."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from rota.api import tokens
from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body, Word
from rota.api.depends import Caller, DryRun, HouseDep, KnownBy
from rota.api.faults import faults
from rota.api.gate import COOKIE, SESSION_LIVES_S, Turned
from rota.app.authz import Act, authorise
from rota.app.commands import PutRecord
from rota.app.errors import NotFound

router = APIRouter(tags=["identity"])


class Me(BaseModel):
    name: str
    role: str
    acts_for: str
    known_by: str


class NewToken(Body):
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


class Login(Body):
    code: Word = Field(description="The code of a login link, or a token.")


@router.get("/whoami", summary="Who the server takes you for", responses={200: {"model": Me}, **faults()})
async def whoami(who: Caller, by: KnownBy) -> Json:
    return Json({"name": who.name, "role": who.role.value, "acts_for": who.acts_for, "known_by": by})


@router.get(
    "/tokens", summary="All tokens, without their secrets", responses={200: {"model": list[TokenShown]}, **faults()}
)
async def list_tokens(house: HouseDep, who: Caller) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    return Json([token.public() for token in house.gate.all_tokens()])


@router.post("/tokens", summary="Make a token", responses={200: {"model": TokenMade}, **faults()})
async def make_token(house: HouseDep, who: Caller, body: NewToken, dry_run: DryRun = False) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    secret, token = tokens.make(
        body.user, body.role, time.time(), expires_s=body.expires_seconds, acts_for=body.acts_for, note=body.note
    )
    await act(house, who, PutRecord(token.draft(), fresh=True), dry_run)
    if dry_run:
        return Json({**token.public(), "token": "", "dry_run": True})
    house.gate.learn(token)
    return Json({**token.public(), "token": secret})


@router.delete("/tokens/{token_id}", summary="Revoke a token", responses={200: {"model": TokenShown}, **faults(404)})
async def revoke_token(house: HouseDep, who: Caller, token_id: str, dry_run: DryRun = False) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    token = house.gate.token(token_id)
    if token is None:
        raise NotFound(f"no token {token_id[:50]!r}; see GET /tokens", "token_id")
    if token.revoked_at is None:
        token = replace(token, revoked_at=time.time())
        await act(house, who, PutRecord(token.draft()), dry_run)
        if not dry_run:
            house.gate.learn(token)
    return Json({**token.public(), **({"dry_run": True} if dry_run else {})})


@router.post("/tokens/{token_id}/link", summary="A login link for a browser, good once", responses=faults(404))
async def login_link(house: HouseDep, who: Caller, token_id: str) -> Json:
    authorise(who, Act.MANAGE_TOKENS)
    token = house.gate.token(token_id)
    if token is None or not token.valid(time.time()):
        raise NotFound(f"no valid token {token_id[:50]!r}; see GET /tokens", "token_id")
    return Json({"path": f"/login?code={house.gate.new_code(token_id)}"})


@router.get("/login", include_in_schema=False)
async def login_by_link(
    request: Request, house: HouseDep, code: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    cookie = house.gate.redeem(_source(request), code)
    if isinstance(cookie, Turned):
        return Json({"detail": cookie.why}, cookie.status)
    return _with_session(RedirectResponse("/", 303), cookie)


@router.post(
    "/login", summary="Begin a browser session", responses={200: {"description": "The cookie is set."}, **faults()}
)
async def login(request: Request, house: HouseDep, body: Login) -> Response:
    cookie = house.gate.redeem(_source(request), body.code)
    if isinstance(cookie, Turned):
        return Json({"detail": cookie.why}, cookie.status)
    return _with_session(Json({"message": "Logged in"}), cookie)


@router.post("/logout", summary="End the browser session", responses=faults())
async def logout() -> Json:
    answer = Json({"message": "Logged out"})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _with_session(answer: Response, cookie: str) -> Response:
    answer.set_cookie(COOKIE, cookie, max_age=int(SESSION_LIVES_S), path="/", httponly=True, samesite="strict")
    return answer


def _source(request: Request) -> str:
    client: Any = request.scope.get("client")
    return client[0] if client else ""
