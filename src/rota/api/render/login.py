"""The page of a browser whose login link is not taken: why, and what to do next."""

from __future__ import annotations

from html import escape


def page(why: str) -> str:
    """Return it as HTML without a script: the dashboard asks for a token where nobody is logged in."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rota: not logged in</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="/static/icon.svg">'
        '<link rel="stylesheet" href="/static/style.css"></head>'
        f'<body><header><h1>Rota</h1></header><main><h2>Not logged in</h2><p role="alert">{escape(why)}</p>'
        "<p>A login link is good once, within an hour. To get a new one, run <code>rota login --link</code> in a "
        "terminal, or ask an admin.</p>"
        '<p>Are you logged in already, or do you have a token? <a href="/">Go to the dashboard</a>.</p>'
        "</main></body></html>"
    )
