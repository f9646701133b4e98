"""`rota gpus`: a picture of every GPU and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import clock, plain
from rota.cli.watch import show, watch_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rota.client.model.cluster import Gpu, Node

CELL = 8
SIGNS = {"available": "·", "offline": "off", "error": "ERROR"}


@click.command()
@watch_option
@json_option
@server_option
def command(watch: bool, as_json: bool, server: str) -> None:
    """One cell a GPU: the person who holds it, R: and for whom where it is reserved now, or · where it is free."""
    with connect(server) as client:
        if as_json:
            emit([{**gpu.raw} for node in client.nodes() for gpu in node.gpus])
        else:
            show(lambda: picture(client.nodes()), watch)


def picture(nodes: Sequence[Node]) -> str:
    if not any(node.gpus for node in nodes):
        return "no GPUs here; runs get CPUs alone"
    size = max(len(plain(node.node_id)) for node in nodes)
    most = max(len(node.gpus) for node in nodes)
    lines = [" " * size + "  " + "".join(f"{number:<{CELL + 1}}" for number in range(most)).rstrip()]
    for node in nodes:
        lines.append(f"{plain(node.node_id):{size}}  " + " ".join(_cell(gpu) for gpu in node.gpus).rstrip())
    held = [gpu for node in nodes for gpu in node.gpus if gpu.status == "allocated"]
    idle = [gpu for node in nodes for gpu in node.gpus if gpu.status == "available"]
    kept = sum(bool(_reserved(gpu)) for gpu in idle)
    total = sum(len(node.gpus) for node in nodes)
    apart = f", {kept} reserved" if kept else ""
    lines += ["", f"{len(held)} of {total} GPUs held, {len(idle) - kept} free{apart}{_kinds(nodes)}"]
    lines += [f"  {who}" for who in _holders(held)]
    lines += [f"  {text}" for text in _reservations(nodes)]
    return "\n".join(lines)


def _cell(gpu: Gpu) -> str:
    from rota.cli.table import colours

    kept = _reserved(gpu) if gpu.status == "available" else {}
    word = f"R:{kept.get('user', '?')}" if kept else SIGNS.get(gpu.status) or gpu.user or gpu.allocated_to or "?"
    text = f"{plain(word)[:CELL]:{CELL}}"
    if not colours():
        return text
    kind = "cyan" if kept else {"available": "green", "allocated": "yellow"}.get(gpu.status, "red")
    return click.style(text, fg=kind)


def _reserved(gpu: Gpu) -> Mapping[str, Any]:
    """Of a reservation whose time is now; an older server says nothing of it."""
    found = gpu.raw.get("reserved")
    return found if isinstance(found, dict) else {}


def _reservations(nodes: Sequence[Node]) -> list[str]:
    """demo (6af9a5ed5e05) keeps 4 GPUs for ann, ben until 18:00:00, 2 of them held."""
    kept: dict[tuple[str, float], list[Gpu]] = {}
    for gpu in (gpu for node in nodes for gpu in node.gpus):
        one = _reserved(gpu)
        if one:
            # others' are all called "hidden": what ends at the same time is told as one
            kept.setdefault((str(one.get("reservation_id")), float(one.get("until") or 0.0)), []).append(gpu)
    told = []
    for (name, until), gpus in kept.items():
        one = _reserved(gpus[0])
        called = f"{one['name']} ({name})" if one.get("name") else name
        held = sum(gpu.status == "allocated" for gpu in gpus)
        who = ", ".join(map(str, (one.get("user", "?"), *(one.get("users") or ()))))
        some = f", {held} of them held" if held else ""
        count = f"{len(gpus)} GPU{'s'[: len(gpus) != 1]}"
        told.append(plain(f"reserved: {called} keeps {count} for {who} until {clock(until)}{some}"))
    return told


def _kinds(nodes: Sequence[Node]) -> str:
    return "; SIMULATED: the jobs are real, the GPUs are not" if any(node.simulated for node in nodes) else ""


def _holders(held: Sequence[Gpu]) -> list[str]:
    runs: dict[str, list[Gpu]] = {}
    for gpu in held:
        runs.setdefault(gpu.allocated_to or "?", []).append(gpu)
    return [
        plain(f"{run}  {gpus[0].user or '-'}  {len(gpus)} GPU{'s'[: len(gpus) != 1]}  {gpus[0].name or ''}").rstrip()
        for run, gpus in runs.items()
    ]
