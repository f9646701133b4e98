"""Where the server is and what to show it: from arguments, the environment, and two files.

URL    ROTA_URL, else RESEARCH_AGENT_SERVER_URL, else the unix socket in the data directory where there is one (no
       password needed: the kernel says who calls, and who answers), else that of the machine's own server
       (`rota service install --system`), else http://127.0.0.1:10000.
Token  ROTA_TOKEN, else RESEARCH_AGENT_USER_AUTH_TOKEN, else the file ~/.config/rota/token, which must be its owner's
       alone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from rota.client.errors import RotaError

DEFAULT_URL = "http://127.0.0.1:10000"
SYSTEM_SOCKET = "/var/lib/rota/rota.sock"  # of the unit that `rota service install --system` writes
SYSTEM = "the socket of this machine's server"
URL_NAMES = ("ROTA_URL", "RESEARCH_AGENT_SERVER_URL")
TOKEN_NAMES = ("ROTA_TOKEN", "RESEARCH_AGENT_USER_AUTH_TOKEN")
MAX_TOKEN = 4096
_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~%-]+)*)/?")


class Address:
    """One server: a TCP address, with TLS or without, or a unix socket."""

    __slots__ = ("host", "port", "prefix", "socket", "tls", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.socket = self.host = self.prefix = ""
        self.port, self.tls = 0, False
        if url.startswith("unix://"):
            self.socket = url.removeprefix("unix://")
            if not self.socket.startswith("/") or "\0" in self.socket:
                raise RotaError(f"{url[:200]!r}: a unix socket is given as unix:///path/to/rota.sock")
            return
        match = _URL.fullmatch(url)
        if match is None:
            raise RotaError(
                f"{url[:200]!r} is no address of a server; use http://host:port, https://host, or unix:///path"
            )
        self.tls = match[1] == "https"
        self.host = match[2].strip("[]")
        self.port = int(match[3]) if match[3] else 443 if self.tls else 80
        self.prefix = match[4]
        if not 0 < self.port < 65536:
            raise RotaError(f"{url[:200]!r}: the port must be 1 to 65535")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names to connect to, in their order. A server listens on 127.0.0.1, and most machines take `localhost`
        for ::1 first, where another account may hold the same port."""
        return ("127.0.0.1", self.host) if self.host.lower() == "localhost" else (self.host,)

    @property
    def authority(self) -> str:
        """For the Host header."""
        if self.socket:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def find_url(env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The server's URL, and where it was found."""
    env = os.environ if env is None else env
    for name in URL_NAMES:
        if env.get(name):
            return env[name], name
    path = os.path.join(data_dir(env), "rota.sock")
    if _is_socket(path):
        return f"unix://{path}", "the socket in the data directory"
    if _is_socket(SYSTEM_SOCKET):
        return f"unix://{SYSTEM_SOCKET}", SYSTEM
    return DEFAULT_URL, "default"


def find_token(env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The token, "" for none, and where it was found."""
    env = os.environ if env is None else env
    for name in TOKEN_NAMES:
        if env.get(name):
            return env[name], name
    path = token_file(env)
    return (read_token(path), path) if path and os.path.lexists(path) else ("", "none")


def read_token(path: str) -> str:
    """A token file that others can read is as good as published: it is refused, not used."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RotaError(f"cannot read the token in {path}: {error.strerror}") from None
    with open(number, "rb") as file:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise RotaError(f"{path} can be read by others; chmod 600 it, or better: make a new token and rota login")
        text = file.read(MAX_TOKEN + 1).decode("utf-8", "replace").strip()
    if len(text) > MAX_TOKEN or not text.isascii() or not text.isprintable():
        raise RotaError(f"{path} holds no token; store one with: rota login")
    return text


def token_file(env: Mapping[str, str]) -> str:
    """Where `rota login` keeps the token; "" for somebody without a home."""
    return config_file(env, "token")


def config_file(env: Mapping[str, str], name: str) -> str:
    """A file of this account's configuration; "" for somebody without a home."""
    base = env.get("XDG_CONFIG_HOME") or (os.path.join(env["HOME"], ".config") if env.get("HOME") else "")
    return os.path.join(base, "rota", name) if base else ""


def data_dir(env: Mapping[str, str]) -> str:
    """As the server itself finds it (rota.config.default_data_dir, which a client need not load)."""
    if env.get("ROTA_DATA_DIR"):
        return env["ROTA_DATA_DIR"]
    base = env.get("XDG_DATA_HOME") or os.path.join(env.get("HOME") or "/var/lib", ".local", "share")
    return os.path.join(base, "rota")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
