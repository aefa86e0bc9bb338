"""A real browser (Debian's chromium, driven by Playwright) that looks at an agent's page as people do."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.machines.packages import BROWSER, require
from tests.needing import needing

CHROMIUM = "/usr/bin/chromium"
# As root in a container there is no sandbox. The browser must send no request of its own.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the tests of a module; every test looks with eyes of its own."""
    with needing():
        require(BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(FLAGS), timeout=2 * PATIENCE_SECONDS * 1000
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def dashboard(state: Path) -> Iterator[str]:
    """`evenkeel dashboard` as a process of its own; its address."""
    command = [sys.executable, "-m", "evenkeel", "dashboard", "--state-dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def looking(chromium: Any, state: Path, **options: Any) -> Iterator[Any]:
    """Opens the page of the agent at `state`. At the end, checks that it reported no mistake and sent no request to
    another server."""
    with dashboard(state) as address, contextlib.closing(chromium.new_context(**options)) as context:
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        page = context.new_page()
        complaints: list[str] = []
        asked: set[str] = set()
        page.on(
            "console",
            lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        page.complaints = complaints
        page.goto(address)
        page.locator("#link[data-state=live]").wait_for()
        page.locator("main:not([aria-busy])").wait_for()  # a clock says the one, and drawing follows
        yield page
        assert complaints == []
        assert asked == {urlsplit(address).netloc}
