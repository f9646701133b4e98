"""Which further fields a request takes. The server lets unknown ones pass; in Python a slip of the pen should not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

_OF_BOTH = frozenset(
    """
    account checkpoint_signal chat_session_id cpus depends_on env estimated_duration_seconds filler gpu_count
    gpu_memory_gb gpu_type grace_seconds max_retries memory_gb nodes preemptible priority reservation retry_failures
    span tags terminal time_limit_seconds umask user warn_seconds warn_signal workspace
    """.split()  # noqa: SIM905 - one word a line would be thirty
)
OF_A_RUN = _OF_BOTH | {"gpuwrap_config", "origin_alert_id", "parent_run_id", "sweep_id"}
OF_A_SWEEP = _OF_BOTH | {"creation_context", "goal", "status", "ui_config"}
OF_A_RERUN = frozenset({"gpuwrap_config", "origin_alert_id"})


def must_be_known(what: str, given: Iterable[str], known: Collection[str], own: Collection[str]) -> None:
    """`own`: what the call takes besides, to be named as well where it is close."""
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, [*own, *known])
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise TypeError(f"{what}() has no argument {name!r}{hint}")
