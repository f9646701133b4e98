"""What holds for every test: the Hypothesis profiles, and no unexpected skip in CI.

A skip is a test that says nothing. On a laptop that is fine (`-ra` prints why); under CI=true a skip whose reason is
not listed in ALLOWED_SKIPS fails the session, so that a suite can not go quiet unseen.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers

# Reasons, by their beginning, for which a test may be skipped in CI. Each entry needs a comment that says why.
ALLOWED_SKIPS: list[str] = []

# "ci" tries the same examples in every run, so that a change fails by what it changes; "soak" searches for new ones.
# Neither judges how long an example takes: a busy machine makes any of them slow.
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=100,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("ROTA_HYPOTHESIS", "ci"))

# Hypothesis also draws the constants found in the source of the modules imported so far. Those depend on the tests that
# the same worker ran before, and on every number in src: without them `derandomize` alone does not repeat an example.
if settings().derandomize:
    assert hasattr(providers, "_get_local_constants"), "this Hypothesis has another name for it"
    providers._get_local_constants = constants_ast.Constants

os.umask(0o022)  # as most have it: what a test makes must not depend on who runs it

# Started in the background (nohup, a CI runner without a terminal) we inherit ignored signals, and so would every
# program a test presses Ctrl-C on.
if threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def unexpected_skips(config: pytest.Config) -> list[str]:
    """'where: reason' of each skip that CI does not allow; always empty in an xdist worker, which has no terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None or hasattr(config, "workerinput"):
        return []
    found = {(report.nodeid, skip_reason(report)) for report in reporter.stats.get("skipped", [])}
    return [f"{where}: {why}" for where, why in sorted(found) if not why.startswith(tuple(ALLOWED_SKIPS))]


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(message.removeprefix("Skipped: ").split())


def pytest_sessionfinish(session: pytest.Session) -> None:
    quiet = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if quiet and unexpected_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = unexpected_skips(config)
    if not skips:
        return
    terminalreporter.section("skips that CI does not allow", red=True, bold=True)
    for line in skips:
        terminalreporter.line(line)
    terminalreporter.line("Make these tests run, or add the reason to ALLOWED_SKIPS in tests/conftest.py.")
