"""The end of a test run by a signal: as by ^C, so that what tests have started and made is ended and removed.

A pytest plugin (`-p tests.machines.ending`), and what programs that start pytest do, too. A shell starts what it puts
into the background with SIGINT ignored, and all that comes of it inherits that. And a second signal must not end the
removal: at a terminal ^C reaches us and our parent, which then signals us as well.

Python drops an exception that is raised while an object is being destroyed. An interrupt that comes at such a moment is
raised again soon after: otherwise nothing would ever end the run."""

import signal
import sys

import pytest

AGAIN_SECONDS = 0.01


def as_by_interrupt() -> None:
    """The first SIGINT or SIGTERM is a KeyboardInterrupt, whatever was inherited; later ones do nothing."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    report = sys.unraisablehook

    def dropped(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)
            return
        signal.signal(signal.SIGALRM, _interrupted)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)

    sys.unraisablehook = dropped


def _interrupted(_number: int, _frame: object) -> None:
    # And not ignored: what is started from now on would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _not_again)
    raise KeyboardInterrupt


def _not_again(_number: int, _frame: object) -> None:
    pass


@pytest.hookimpl(trylast=True)  # pytest sets its own hook for what is dropped
def pytest_configure() -> None:
    as_by_interrupt()
