"""`rota service`: let systemd keep the server running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from rota.cli.exits import REFUSED
from rota.cli.values import Where

UNIT = "rota.service"
SOCKET = "rota.socket"
DATA_DIR = "/var/lib/rota"  # of a --system unit
ENV_TEXT = """\
# Settings of the Rota server, one NAME=value a line; `rota config show` lists them. Readable by its owner alone.
#ROTA_HOST=127.0.0.1
#ROTA_PORT=10000
#ROTA_LEASE_PORT=9123
# After a change of these three run `rota service install` again: systemd holds the ports for the server.
"""


@dataclass(frozen=True)
class Site:
    """Where the files of one kind of unit lie."""

    system: bool
    unit: Path
    env_file: Path  # as systemd will see it
    env_there: Path  # as we write it, under --root

    @property
    def socket(self) -> Path:
        return self.unit.with_name(SOCKET)

    @property
    def systemctl(self) -> str:
        return "systemctl" if self.system else "systemctl --user"


_kind = click.option(
    "--system/--user",
    "system",
    default=None,
    help="For the whole machine, or for you alone.  [default: --system as root]",
)
_root = click.option(
    "--root",
    type=Where(file_okay=False, path_type=Path),
    default=Path("/"),
    help="Write below this directory instead of /, for images and packages.",
)


@click.group()
def command() -> None:
    """Let systemd keep the server running. Jobs run on while it is restarted."""


@command.command()
@_kind
@_root
@click.option("--account", default="", help="With --system: the account the server runs as.  [default: root]")
@click.option("--dry-run", is_flag=True, help="Print the unit and write nothing.")
def install(system: bool | None, root: Path, account: str, dry_run: bool) -> None:
    """Write the unit files, of the server and of its ports, and say what to type next.

    Systemd holds the ports while the server restarts: clients wait, and nobody else can listen there meanwhile.
    """
    site = _site(system, root)
    if account and not site.system:
        raise click.UsageError("--account goes with --system; a --user unit runs as you")
    units = {site.unit: unit_text(site, account), site.socket: socket_text(site)}
    if dry_run:
        click.echo("\n".join(f"# {path}\n{text}" for path, text in units.items()), nl=False)
        return
    from rota.cli.units import MARK
    from rota.client.trust import SYSTEM_FILE

    for path in units:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            _refuse(f"{path} is there already and is not Rota's; move it away first")
    try:
        for path, text in units.items():
            _write(path, text, 0o644)
        if not site.env_there.exists():
            _write(site.env_there, ENV_TEXT, 0o600)
        if account:  # or every person would have to name it before a token is sent
            _write(site.env_there.with_name(Path(SYSTEM_FILE).name), f"{account}\n", 0o644)
    except OSError as error:
        hint = "; as root, or with --user" if site.system else ""
        _refuse(f"cannot write {error.filename}: {error.strerror}{hint}")
    click.echo(f"wrote {site.unit} and {SOCKET} beside it\nsettings go into {site.env_there}\n")
    if not _systemd():
        click.echo("systemd does not run on this machine; where it does:")
    if site.system:
        click.echo(
            f"  ROTA_DATA_DIR={DATA_DIR} rota token create --user root --role admin"
            "    # first: a server without tokens is open to every account of the machine"
        )
    click.echo(f"  {site.systemctl} daemon-reload\n  {site.systemctl} enable --now {SOCKET} {UNIT}")
    if not site.system:
        click.echo("  loginctl enable-linger    # so that it runs while you are logged out")


@command.command()
@_kind
@_root
def status(system: bool | None, root: Path) -> None:
    """Whether it is installed, and what systemd says of it."""
    site = _site(system, root)
    if not site.unit.exists():
        click.echo(f"not installed: there is no {site.unit}; see: rota service install --help")
        sys.exit(4)  # systemd's own code for a unit that is not known
    click.echo(f"installed: {site.unit}")
    if not _systemd() or root != Path("/"):
        click.echo("systemd does not run on this machine, so it is not started by it")
        sys.exit(3)
    sys.exit(subprocess.call([*site.systemctl.split(), "status", "--no-pager", "--lines=5", UNIT, SOCKET]))


@command.command()
@_kind
@_root
def uninstall(system: bool | None, root: Path) -> None:
    """Remove the unit files. Settings and data stay, and so do running jobs."""
    from rota.cli.units import MARK

    site = _site(system, root)
    if not site.unit.exists():
        click.echo(f"not installed: there is no {site.unit}")
        return
    units = [path for path in (site.socket, site.unit) if path.exists()]
    for path in units:
        if MARK not in path.read_text(errors="replace"):
            _refuse(f"{path} is not Rota's; remove it by hand if it should go")
    running = _systemd() and root == Path("/")
    if running:
        subprocess.call([*site.systemctl.split(), "disable", "--now", *(path.name for path in units)])
    try:
        for path in units:
            path.unlink()
    except OSError as error:
        _refuse(f"cannot remove {site.unit}: {error.strerror}")
    if running:
        subprocess.call([*site.systemctl.split(), "daemon-reload"])
    click.echo(f"removed {site.unit}; {site.env_there} and all data are still there")


def unit_text(site: Site, account: str = "") -> str:
    from rota.cli.units import fill, quoted

    own = []
    if site.system:
        own = ["StateDirectory=rota", "StateDirectoryMode=0711", f"Environment=ROTA_DATA_DIR={DATA_DIR}"]
        own += [f"User={quoted(account)}"] if account else []
        # without an account of its own the server is root, which starts each job as the person it belongs to
    return fill(
        UNIT,
        {
            "SYSTEMCTL": site.systemctl,
            "ROTA": " ".join(map(quoted, _this_rota())),
            "ENV_FILE": str(site.env_file).replace("%", "%%"),
            "OWN": "\n".join(own),
            "HARDENING": "ProtectKernelLogs=yes\nProtectHostname=yes" if site.system else "",
            "TARGET": "multi-user.target" if site.system else "default.target",
        },
    )


def socket_text(site: Site) -> str:
    """The addresses are those that the server will find in its settings."""
    from rota.cli.units import fill
    from rota.config import BadSetting, read_settings

    try:
        settings, _ = read_settings({}, _settings_of(site))
    except BadSetting as error:
        _refuse(f"{site.env_there}: {error}")
    lease = _stream(settings.host, settings.lease_port) if settings.lease_port else ""
    unix = str(settings.data_dir.expanduser() / "rota.sock").replace("%", "%%") if settings.unix_socket else ""
    return fill(
        SOCKET,
        {
            "ENV_FILE": str(site.env_file).replace("%", "%%"),
            "MAIN": _stream(settings.host, settings.port),
            "LEASE": lease and f"ListenStream={lease}",
            "UNIX": unix and f"ListenStream={unix}",
        },
    )


def _settings_of(site: Site) -> dict[str, str]:
    """The variables that systemd will give to the server, as far as they can be known here."""
    found = {"HOME": str(Path.home())}
    if site.system:
        found["ROTA_DATA_DIR"] = DATA_DIR
    elif os.environ.get("XDG_DATA_HOME"):
        found["XDG_DATA_HOME"] = os.environ["XDG_DATA_HOME"]
    try:
        lines = site.env_there.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            found[name.strip()] = value.strip().strip("\"'")
    return found


def _stream(host: str, port: int) -> str:
    """An address as systemd reads it, which knows no names of machines."""
    import socket

    if not port:
        _refuse("the port is 0, any that is free: choose one for a service, with ROTA_PORT and ROTA_LEASE_PORT")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        _refuse(f"ROTA_HOST: {host!r} is no address of this machine: {error.strerror}")
    address = str(found[0][4][0])
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _this_rota() -> list[str]:
    """The same installation as this one, by its absolute path: a service has no PATH of yours."""
    program = Path(sys.executable).absolute().with_name("rota")
    return [str(program)] if os.access(program, os.X_OK) else [sys.executable, "-P", "-m", "rota"]


def _site(system: bool | None, root: Path) -> Site:
    root = root.absolute()
    if os.geteuid() == 0 if system is None else system:
        env = Path("/etc/rota/rota.env")
        return Site(True, root / "etc/systemd/system" / UNIT, env, root / env.relative_to("/"))
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").absolute()
    env = config / "rota" / "rota.env"
    return Site(False, root / (config / "systemd/user" / UNIT).relative_to("/"), env, root / env.relative_to("/"))


def _systemd() -> bool:
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    draft.chmod(mode)
    draft.replace(path)


def _refuse(why: str) -> NoReturn:
    click.echo(f"rota: {why}", err=True)
    sys.exit(REFUSED)
