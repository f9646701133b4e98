"""What is written is true: links lead somewhere, commands and flags exist, references are what the code says."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from rota.api import guard
from rota.app.authz import HIGHEST_PRIORITY, MAY, Act, On, Role
from rota.client.aio import AsyncClient
from rota.client.sync import Client
from tools import api_doc, cli_doc, settings_doc
from tools.page import REFERENCE

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])
WRITTEN = [page for page in PAGES if page.parent != REFERENCE]

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```$", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
ROTA = re.compile(r"(?:^|(?<=[\s(/\"']))(?<!from )rota +(?=[a-z])(?!rota )")
ENDS = frozenset({"|", "||", "&&", "&", ";", ">", "<"})

PROCESS = re.compile(r"\b(issues?|helper agents?|contract\.md|TODO|FIXME)\b", re.I)
PATHS = re.compile(r"(?<![\w.])/(?:work|root|tmp/bash_jobs)/|/home/(?!ann\b|ben\b)")
HOSTS = re.compile(r"https?://([A-Za-z0-9.-]+)")
KNOWN_HOSTS = {"127.0.0.1", "localhost", "host", "gpus.example.org", "www.apache.org"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(text: str) -> str:
    """Without code, where brackets are no links."""
    return INLINE.sub("", FENCE.sub("", text))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of each heading, as it becomes a link's target."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_example_saves_on_a_signal_that_nccl_uses(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if "USR1" in line and "NCCL" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page.read_text())):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        there = page if not path else (page.parent / path).resolve()
        assert there.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{named(page)} links to {target}, and there is no such heading"


def test_every_page_can_be_reached_from_the_first() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = (target.partition("#")[0] for target in LINK.findall(prose(page.read_text())))
        todo += [(page.parent / path).resolve() for path in targets if path and not re.match(r"[a-z]+:", path)]
    hidden = [named(page) for page in PAGES if page not in seen and "docs" in page.parts and "adr" not in page.parts]
    assert hidden == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_it_speaks_of_rota_alone(page: Path) -> None:
    text = page.read_text()
    assert PROCESS.findall(text) == []
    if page in WRITTEN:  # in code, and in the commands' own help, it is a parameter of somebody's training
        assert re.findall(r"(?i)\bseeds?\b", prose(text)) == []
    assert PATHS.findall(text) == []
    assert set(HOSTS.findall(text)) - KNOWN_HOSTS == set()


# -- commands ---------------------------------------------------------------------------------------------------------
def code(text: str) -> Iterator[str]:
    """Lines of code that may hold a command: of blocks that are no Python, and what stands in backticks."""
    for _, language, block in FENCE.findall(text):
        if language in ("sh", "text", "", "yaml"):
            yield from re.sub(r"\\\n", " ", block).splitlines()
    yield from INLINE.findall(FENCE.sub("", text))


def calls(text: str) -> Iterator[list[str]]:
    """The words after each `rota` that is called."""
    for line in code(text):
        for match in ROTA.finditer(line):
            try:
                words = shlex.split(line[match.end() :], comments=True)
            except ValueError:  # half a quote: the command stands inside one
                words = re.split(r"\s+", re.split(r"['\")]", line[match.end() :])[0])
            yield list(until_the_end(words))


def until_the_end(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in ENDS or re.match(r"[12]?>", word):
            return
        yield word.rstrip(";),:")
        if word.endswith((";", ")", ",", ":")):
            return


@cache
def commands() -> dict[str, click.Command]:
    return cli_doc.commands()


def objection(words: list[str]) -> str:
    """What is wrong with such a call; empty = nothing."""
    name = "rota"
    while words and f"{name} {words[0]}" in commands():
        name += f" {words.pop(0)}"
    if name == "rota":
        return f"there is no `rota {words[0]}`"
    command = commands()[name]
    if isinstance(command, click.Group) and words and not words[0].startswith("-") and not words[0].isupper():
        return f"there is no `{name} {words[0]}`"
    try:
        command.make_parser(click.Context(command, info_name=name)).parse_args(list(words))
    except click.UsageError as error:
        return f"`{name}`: {error.format_message()}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_that_is_named_exists_with_its_flags(page: Path) -> None:
    wrong = [why for words in calls(page.read_text()) if (why := objection(words))]
    assert wrong == []


def test_a_wrong_command_would_be_found() -> None:
    block = "make up && .venv/bin/rota history --frob 3 | cat\nrota history --days 3 # for usage"
    flag, fine, name = (objection(words) for words in calls(f"Try `rota frobnicate`.\n\n```sh\n{block}\n```\n"))
    assert "--frob" in flag
    assert fine == ""
    assert name == "there is no `rota frobnicate`"


# -- Python -----------------------------------------------------------------------------------------------------------
def python_blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, (_, language, block) in enumerate(FENCE.findall(page.read_text()), 1):
            if language == "python":
                found.append((f"{named(page)} block {number}", block))
    return found


@pytest.mark.parametrize("block", [block for _, block in python_blocks()], ids=[name for name, _ in python_blocks()])
def test_python_that_is_shown_uses_what_there_is(block: str) -> None:
    """It compiles, its imports work, and what it calls on a client is a method of both clients."""
    tree = ast.parse(block)
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "imports", "exec"), {})  # noqa: S102 - our own documents
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rota":
            assert hasattr(Client, node.attr), f"Client has no {node.attr}"
            assert hasattr(AsyncClient, node.attr), f"AsyncClient has no {node.attr}"


# -- what is generated ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("page", "rendered"),
    [
        ("cli.md", cli_doc.rendered),
        ("http.md", api_doc.rendered),
        ("settings.md", settings_doc.rendered),
    ],
)
def test_the_references_are_what_the_code_says(page: str, rendered: Callable[[], str]) -> None:
    assert (REFERENCE / page).read_text() == rendered(), f"docs/reference/{page} is stale; run: make docs"


def test_the_http_reference_has_every_path() -> None:
    text = (REFERENCE / "http.md").read_text()
    paths = api_doc.document()["paths"]
    assert len(paths) > 20
    assert [path for path in paths if f" {path}\n" not in text] == []


# -- tables that are written by hand ----------------------------------------------------------------------------------
def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    text = (ROOT / "docs" / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_roles_on_the_security_page_are_the_ones_in_force() -> None:
    words = {On.ANY: "any", On.OWN: "own", On.NOTHING: "-"}
    roles = (Role.ADMIN, Role.USER, Role.AGENT, Role.VIEWER)
    assert rows("security.md", "Who may do what") == [
        [str(act), *(words[MAY[role].get(act, On.NOTHING)] for role in roles)] for act in Act
    ]
    assert (HIGHEST_PRIORITY[Role.USER], HIGHEST_PRIORITY[Role.ADMIN], HIGHEST_PRIORITY[Role.AGENT]) == (4, 4, 2)


def test_the_open_routes_on_the_security_page_are_the_ones_that_are_open() -> None:
    text = (ROOT / "docs" / "security.md").read_text().split("closed except")[1].split(". ")[0]
    said = set(re.findall(r"`(/[^`]*)`", text))
    assert said == guard.OPEN | {path.rstrip("/") for path in guard.OPEN_BELOW}


def test_the_words_of_the_doors_in_the_concepts_are_the_ones_they_use() -> None:
    from rota.api.render.words import JOB_WORDS, LEASE_WORDS, RUN_WORDS
    from rota.core.run import RunState

    said = {}
    for states, *words in rows("concepts.md", "One ledger, many doors"):
        for state in states.split(", "):
            said[RunState(state)] = [word.partition(" ")[0].strip("`") for word in words]
    assert set(said) == set(RunState)
    for state, (run, job, lease) in said.items():
        assert (run, job) == (RUN_WORDS[state], JOB_WORDS[state])
        assert lease in ("", LEASE_WORDS[state])


def test_every_metric_is_on_the_operations_page() -> None:
    source = (ROOT / "src/rota/api/render/prometheus.py").read_text()
    text = (ROOT / "docs" / "operations.md").read_text()
    names = set(re.findall(r'"(rota_[a-z_]+)"', source))
    assert len(names) >= 8
    assert [name for name in sorted(names) if f"`{name}" not in text] == []
