"""The pages of a browser that opens a login link, where it is not logged in at once."""

from __future__ import annotations

from html import escape

from rota.app.authz import Principal


def page(why: str) -> str:
    """Return why the link is not taken, and what to do next, as HTML without a script: the dashboard asks for a token
    where nobody is logged in."""
    return _page(
        "Not logged in",
        f'<p role="alert">{escape(why)}</p>'
        "<p>A login link is good once, within an hour. To get a new one, run <code>rota login --link</code> in a "
        "terminal, or ask an admin.</p>"
        '<p>Are you logged in already, or do you have a token? <a href="/">Go to the dashboard</a>.</p>',
    )


def confirmation(who: Principal) -> str:
    """Return the question whether to log in as this caller. It has neither the code nor anything that spends it."""
    name = escape(who.name)
    return _page(
        f"Log in as {name}?",
        f"<p>Another site led here by a login link of <strong>{name}</strong> ({escape(who.role)}). If you are "
        f"somebody else, close this page: what you submit after the login would be {name}'s.</p>"
        f'<form id="confirm"><button>Log in as {name}</button></form><p id="login-error" role="alert"></p>',
        '<script src="/static/login.js" defer></script>',
    )


def _page(title: str, body: str, script: str = "") -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rota: {title}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="/static/icon.svg">'
        f'<link rel="stylesheet" href="/static/style.css">{script}</head>'
        f"<body><header><h1>Rota</h1></header><main><h2>{title}</h2>{body}</main></body></html>"
    )
