"""The screen of `rota top`: three panes that are drawn anew with each look at the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Input, Static

from rota.cli.tui import draw
from rota.cli.tui.look import Look, look
from rota.cli.tui.screens import Ask, Details
from rota.client.errors import NotFound, RotaError
from rota.client.sync import Client

W = TypeVar("W", bound=Widget)
EVERY_S = 1.0
LOG_BYTES = 16_384


class Top(App[int]):
    TITLE = "rota top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "", show=False, priority=True),
        Binding("c", "cancel", "cancel"),
        Binding("enter", "open", "details", priority=False),
        Binding("slash", "filter", "filter"),
        Binding("escape", "no_filter", "", show=False),
    ]
    CSS = """
    #heading { height: 1; background: $primary; color: $text; }
    #gpus { height: auto; max-height: 8; }
    #queue, #mine { height: 1fr; min-height: 4; }
    .title { height: 1; color: $text-muted; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    """

    def __init__(self, client: Client, *, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._client = client
        self._every_s = every_s
        self._me = ""
        self._wanted = ""
        self._seen: Look | None = None

    def compose(self) -> ComposeResult:
        yield Static(Text("asking the server ..."), id="heading")
        with VerticalScroll(id="gpus"):
            yield Static(Text(""), id="grid")
        yield Static(Text("queue"), classes="title")
        yield DataTable(id="queue", cursor_type="row")
        yield Static(Text("your runs"), classes="title")
        yield DataTable(id="mine", cursor_type="row")
        yield Input(placeholder="part of an id, a name, a user", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        for name, head in (("queue", draw.QUEUE_HEAD), ("mine", draw.MINE_HEAD)):
            for column in head:
                self._table(name).add_column(column, key=column)
        self._table("queue").focus()
        self._refresh_all()
        self.set_interval(self._every_s, self._refresh_all)

    # -- looking: on a thread of its own, so that a slow server never freezes a key ---------------------------------
    def _refresh_all(self) -> None:
        if not any(worker.name == "look" and worker.is_running for worker in self.workers):
            self._look()

    @work(thread=True, name="look", exit_on_error=False)
    def _look(self) -> None:
        try:
            seen = look(self._client, time.time(), self._me)
        except RotaError as error:
            self.call_from_thread(self._trouble, str(error))
            return
        self.call_from_thread(self._show, seen)
        top = self.screen
        if isinstance(top, Details):
            self._look_closer(top)

    def _look_closer(self, screen: Details) -> None:
        try:
            run = self._client.run(screen.run_id)
            why = self._client.explain(run.id) if run.waiting else None
            log = self._client.logs(run.id, -LOG_BYTES, limit=LOG_BYTES).content
        except NotFound:
            about, lines = [f"{screen.run_id} is gone"], list[str]()
        except RotaError as error:
            about, lines = [str(error)], list[str]()
        else:
            about, lines = draw.details(run, why), draw.log_lines(log)
        self.call_from_thread(self._show_closer, screen, about, lines)

    def _show_closer(self, screen: Details, about: list[str], lines: list[str]) -> None:
        if screen is self.screen:
            screen.show(about, lines)

    def _trouble(self, why: str) -> None:
        self._base("#heading", Static).update(Text(f"{why}; trying again"))

    def _show(self, seen: Look) -> None:
        self._seen, self._me = seen, seen.me
        self._base("#heading", Static).update(Text(draw.heading(seen)))
        self._base("#grid", Static).update(Text("\n".join(draw.gpu_lines(seen.nodes, self.size.width - 2))))
        self._fill("queue", draw.queue_rows(seen, self._wanted))
        self._fill("mine", draw.mine_rows(seen, self._wanted))

    def _fill(self, name: str, rows: Mapping[str, draw.Row]) -> None:
        """Drawn anew with the cursor on the run it was on: what one has chosen must not move under one's finger."""
        table = self._table(name)
        chosen = self._chosen(table)
        table.clear()
        for key, row in rows.items():
            table.add_row(*(Text(cell) for cell in row), key=key)
        if chosen in rows:
            table.move_cursor(row=list(rows).index(chosen), animate=False)

    # -- keys ---------------------------------------------------------------------------------------------------------
    def action_open(self) -> None:
        chosen = self._focused()
        if chosen:
            self.push_screen(Details(chosen))
            self._refresh_all()

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        self.action_open()

    def action_cancel(self) -> None:
        chosen = self._focused()
        if not chosen:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._cancel(chosen)

        self.push_screen(Ask(f"Cancel {chosen}?"), answered)

    @work(thread=True, name="cancel", exit_on_error=False)
    def _cancel(self, run_id: str) -> None:
        try:
            self._client.cancel(run_id)
            said, kind = f"{run_id} is being cancelled", "information"
        except RotaError as error:
            said, kind = str(error), "error"
        tell: Callable[..., None] = self.notify
        self.call_from_thread(tell, said, severity=kind, markup=False)

    def action_filter(self) -> None:
        box = self._base("#filter", Input)
        box.add_class("open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        if self._seen is not None:
            self._show(self._seen)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        self._table("queue").focus()

    def action_no_filter(self) -> None:
        box = self._base("#filter", Input)
        box.value = ""
        box.remove_class("open")
        self._table("queue").focus()

    # -- helpers ------------------------------------------------------------------------------------------------------
    def _base(self, selector: str, kind: type[W]) -> W:
        """Of the panes, also while a screen lies over them."""
        return self.screen_stack[0].query_one(selector, kind)

    def _table(self, name: str) -> DataTable[Text]:
        table: DataTable[Text] = self._base(f"#{name}", DataTable)
        return table

    def _focused(self) -> str:
        table = self.focused if isinstance(self.focused, DataTable) else self._table("queue")
        return self._chosen(table) or self._chosen(self._table("mine"))

    @staticmethod
    def _chosen(table: DataTable[Text]) -> str:
        if not table.row_count:
            return ""
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""
