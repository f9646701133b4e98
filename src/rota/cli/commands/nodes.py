"""`rota nodes`: the machines, and taking one out of service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rota.cli.connect import connect, dry_option, emit, json_option, server_option
from rota.cli.watch import show, watch_option

if TYPE_CHECKING:
    from rota.client.model.cluster import Node

HEADS = ("NODE", "STATE", "FREE", "GPUS", "TYPE", "CPUS", "MEMORY", "NOTE")


@click.group(invoke_without_command=True)
@watch_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, watch: bool, as_json: bool, server: str) -> None:
    """The machines and how much of them is free."""
    if ctx.invoked_subcommand is not None:
        return
    with connect(server) as client:
        if as_json:
            emit([node.raw for node in client.nodes()])
        else:
            from rota.cli.table import table

            show(lambda: table(HEADS, [_row(node) for node in client.nodes()], right=("FREE", "GPUS", "CPUS")), watch)


@command.command()
@click.option("--why", default="", help="A word for those who look.")
@dry_option
@server_option
@click.argument("node_id")
def drain(node_id: str, why: str, dry_run: bool, server: str) -> None:
    """Give NODE_ID nothing new; what runs there runs on."""
    with connect(server) as client:
        client.drain(node_id, why=why, dry_run=dry_run)
    click.echo(f"{node_id} {'would get' if dry_run else 'gets'} nothing new")


@command.command()
@dry_option
@server_option
@click.argument("node_id")
def undrain(node_id: str, dry_run: bool, server: str) -> None:
    """Take NODE_ID back into service."""
    with connect(server) as client:
        client.undrain(node_id, dry_run=dry_run)
    click.echo(f"{node_id} {'would be' if dry_run else 'is'} back in service")


def _row(node: Node) -> tuple[object, ...]:
    idle = [gpu for gpu in node.gpus if gpu.status == "available"]
    reserved = sum(1 for gpu in idle if gpu.raw.get("reserved"))
    free = len(idle) - reserved
    state = "offline" if not node.alive else "drained" if node.drained else "ok"
    kept = f"{reserved} reserved" if reserved else ""
    note = ", ".join(word for word in (kept, "simulated" if node.simulated else "", node.drain_why) if word)
    memory = f"{node.memory_gb:.0f} GB" if node.memory_gb else "-"
    return node.node_id, state, free, node.gpu_count, node.gpu_type or "-", node.cpus or "-", memory, note
