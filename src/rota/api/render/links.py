"""Where else a run can be looked at: what W&B, MLflow and TensorBoard said in its log."""

from __future__ import annotations

import os
import re

TAIL_BYTES = 65536
MOST = 10
# Every repetition has a bound, so that no log can make the search long.
PATTERNS = (
    ("wandb", re.compile(r"https?://[\w.-]{0,100}wandb[\w.-]{0,100}(?::\d{1,5})?/[\w./%~@?=&+-]{1,300}")),
    ("mlflow", re.compile(r"https?://[\w.:/%~@-]{1,200}/#/experiments/\d{1,20}(?:/runs/[0-9a-f]{1,64})?")),
    ("tensorboard", re.compile(r"TensorBoard [\w.]{1,20} at (https?://[\w.-]{1,200}(?::\d{1,5})?/[\w./%-]{0,100})")),
)
WANDB_DIR = re.compile(r"Run data is saved locally in ([^\s\x1b]{1,1000})")


def links(text: str) -> list[dict[str, str]]:
    found: dict[str, str] = {}
    for kind, pattern in PATTERNS:
        for match in pattern.finditer(text):
            found.setdefault(match[match.re.groups], kind)
            if len(found) >= MOST:
                break
    return [{"kind": kind, "url": url} for url, kind in found.items()]


def wandb_dir(text: str, workdir: str) -> str | None:
    match = WANDB_DIR.search(text)
    return None if match is None else os.path.normpath(os.path.join(workdir, match[1]))
