"""`rota gpus`: a picture of every GPU and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import plain
from rota.cli.watch import show, watch_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.client.model.cluster import Gpu, Node

CELL = 8
SIGNS = {"available": "·", "offline": "off", "error": "ERROR"}


@click.command()
@watch_option
@json_option
@server_option
def command(watch: bool, as_json: bool, server: str) -> None:
    """One cell a GPU: the person who holds it, or · where it is free."""
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
    free = sum(gpu.status == "available" for node in nodes for gpu in node.gpus)
    total = sum(len(node.gpus) for node in nodes)
    lines += ["", f"{len(held)} of {total} GPUs held, {free} free{_kinds(nodes)}"]
    lines += [f"  {who}" for who in _holders(held)]
    return "\n".join(lines)


def _cell(gpu: Gpu) -> str:
    from rota.cli.table import colours

    text = f"{SIGNS.get(gpu.status) or plain(gpu.user or gpu.allocated_to or '?')[:CELL]:{CELL}}"
    if not colours():
        return text
    kind = {"available": "green", "allocated": "yellow"}.get(gpu.status, "red")
    return click.style(text, fg=kind)


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
