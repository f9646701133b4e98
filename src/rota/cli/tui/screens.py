"""What opens over the panes: one run with its log, and the question before a cancel."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Ask(ModalScreen[bool]):
    """Yes or no; anything but `y` is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]
    CSS = "Ask { align: center middle; } Ask Vertical { width: 60; height: auto; border: solid $warning; padding: 1; }"

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self._question}\n\ny = yes, n = no"), id="question")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Details(ModalScreen[None]):
    """One run: what is known of it, and the end of its log. The application feeds it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "close")]
    CSS = """
    Details > Vertical { border: solid $accent; background: $surface; }
    Details #about { height: auto; max-height: 40%; border-bottom: solid $accent; }
    """

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self.run_id} ..."), id="about")
            with VerticalScroll(id="scroll"):
                yield Static(Text(""), id="log")

    def show(self, about: list[str], log: list[str]) -> None:
        self.query_one("#about", Static).update(Text("\n".join(about)))
        scroll = self.query_one("#scroll", VerticalScroll)
        at_end = scroll.scroll_y >= scroll.max_scroll_y
        self.query_one("#log", Static).update(Text("\n".join(log) or "(no output yet)"))
        if at_end:  # who scrolled up to read is left there
            scroll.scroll_end(animate=False)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(result)
