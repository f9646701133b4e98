"""`sinfo`: the nodes and how they stand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rota.cli.slurm.columns import Field, Table
from rota.cli.slurm.jobs import PARTITION, compressed
from rota.cli.slurm.options import Option, Takes, UsageError, parse
from rota.cli.slurm.say import guarded, notes
from rota.client.model.cluster import Node
from rota.client.sync import Client

DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
BY_NODE = "%N %.6D %.9P %.6t"
LONG = "%9P %.5a %.10l %.6D %.11T %N"
LONG_BY_NODE = "%N %.6D %.9P %.11T %.4c %.8m %G"
REASONS = "%20E %9u %N"
HELP = """\
usage: sinfo [-N] [-l] [-h] [-n NODES] [-t STATES] [-R] [-o FORMAT]

  -N   a line for each node       -o   fields such as "%P %a %l %D %t %N %G %c %m"
  -R   why nodes are drained      -t   idle, mix, alloc, drain, down"""
TABLE = (
    Option("help", "", Takes.NOTHING),
    Option("Node", "N", Takes.NOTHING),
    Option("long", "l", Takes.NOTHING),
    Option("noheader", "h", Takes.NOTHING),
    Option("nodes", "n"),
    Option("states", "t"),
    Option("list-reasons", "R", Takes.NOTHING),
    Option("format", "o"),
    Option("summarize", "s", Takes.NOTHING),
    Option("all", "a", Takes.NOTHING),
    Option("exact", "e", Takes.NOTHING),
    Option("verbose", "v", Takes.NOTHING),
    Option("partition", "p"),
    Option("sort", "S", note="nodes come by name"),
    Option("iterate", "i", refusal="use: rota top"),
    Option("Format", "O", refusal="use -o with %-fields"),
    Option("json", "", Takes.PERHAPS, refusal="use: rota nodes --json"),
)
_SHORT = {"idle": "idle", "mixed": "mix", "allocated": "alloc", "draining": "drng", "drained": "drain", "down": "down"}


@dataclass(frozen=True, slots=True)
class Line:
    """Nodes that stand alike."""

    nodes: tuple[Node, ...]
    state: str

    @property
    def names(self) -> str:
        return compressed([node.node_id for node in self.nodes])


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("sinfo", _sinfo, sys.argv[1:] if argv is None else argv)


def _sinfo(argv: Sequence[str]) -> int:
    parsed = parse(argv, TABLE, interspersed=True)
    if parsed.has("help"):
        sys.stdout.write(HELP + "\n")
        return 0
    if parsed.rest:
        raise UsageError(f"Unrecognized option: {parsed.rest[0]}")
    by_node, long = parsed.has("Node"), parsed.has("long")
    form = (LONG_BY_NODE if long else BY_NODE) if by_node else LONG if long else DEFAULT
    table = Table(parsed.last("format") or (REASONS if parsed.has("list-reasons") else form), FIELDS)
    notes("sinfo", parsed.notes)
    with Client.from_env() as client:
        nodes = sorted(client.nodes(), key=lambda node: _natural(node.node_id))
    names = (parsed.last("nodes") or "").split(",") if parsed.has("nodes") else None
    states = _states(parsed.last("states") or "") if parsed.has("states") else None
    chosen = [
        node
        for node in nodes
        if (names is None or node.node_id in names)
        and (states is None or state_of(node) in states)
        and (not parsed.has("list-reasons") or node.drained)
        and (not parsed.has("partition") or PARTITION in (parsed.last("partition") or "").split(","))
    ]
    lines = [] if parsed.has("noheader") else [table.heading()]
    lines += [table.row(line) for line in _lines(chosen, by_node=by_node or parsed.has("list-reasons"))]
    sys.stdout.write("".join(line.rstrip() + "\n" for line in lines))
    sys.stdout.flush()
    return 0


def state_of(node: Node) -> str:
    held = sum(gpu.status == "allocated" for gpu in node.gpus)
    if not node.alive:
        return "down"
    if node.drained:
        return "draining" if held else "drained"
    if not held:
        return "idle"
    return "mixed" if any(gpu.status == "available" for gpu in node.gpus) else "allocated"


def _lines(nodes: Sequence[Node], *, by_node: bool) -> list[Line]:
    if by_node:
        return [Line((node,), state_of(node)) for node in nodes]
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((state_of(node), _gres(node)), []).append(node)
    order = list(_SHORT)
    return [Line(tuple(same), state) for (state, _), same in sorted(groups.items(), key=lambda g: order.index(g[0][0]))]


def _gres(node: Node) -> str:
    kind = "_".join((node.gpu_type or "").lower().split())
    return f"gpu:{kind}:{node.gpu_count}" if kind else f"gpu:{node.gpu_count}"


def _states(text: str) -> set[str]:
    found = set()
    for word in text.lower().split(","):
        fitting = {long for long, short in _SHORT.items() if word in (long, short)}
        fitting |= {"drained", "draining"} if word == "drain" else {"mixed"} if word == "mix" else set()
        if not fitting:
            raise UsageError(f"Bad state string: {word!r}; valid are {' '.join(_SHORT.values())}")
        found |= fitting
    return found


def _natural(name: str) -> tuple[str, int, str]:
    digits = name[len(name.rstrip("0123456789")) :]
    return name.rstrip("0123456789"), int(digits or 0), name


FIELDS: dict[str, Field[Line]] = {
    "P": Field("PARTITION", lambda line: f"{PARTITION}*"),
    "R": Field("PARTITION", lambda line: PARTITION),
    "a": Field("AVAIL", lambda line: "up"),
    "l": Field("TIMELIMIT", lambda line: "infinite"),
    "D": Field("NODES", lambda line: str(len(line.nodes))),
    "t": Field("STATE", lambda line: _SHORT[line.state]),
    "T": Field("STATE", lambda line: line.state),
    "N": Field("NODELIST", lambda line: line.names),
    "n": Field("HOSTNAMES", lambda line: line.nodes[0].hostname),
    "G": Field("GRES", lambda line: _gres(line.nodes[0])),
    "c": Field("CPUS", lambda line: str(line.nodes[0].cpus or 0)),
    "m": Field("MEMORY", lambda line: f"{(line.nodes[0].memory_gb or 0) * 1024:.0f}"),
    "E": Field("REASON", lambda line: line.nodes[0].drain_why or "none"),
    "u": Field("USER", lambda line: "Unknown"),
}


if __name__ == "__main__":
    sys.exit(main())
