"""The thread of a watch, and what other threads hand to it."""

import asyncio
import sys
import threading

import pytest

from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError
from evenkeel.pressure.watch_thread import Latest, LoopCalls, WatchThread
from tests.models.kernel import CountingKernel

PATIENCE_SECONDS = 30.0


@pytest.fixture
def eager_threads():
    """Threads take the interpreter from each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_targets_that_are_given_while_others_are_taken_up_are_not_lost(eager_threads):
    latest: Latest[int] = Latest()
    last = 20_000
    taken: list[int] = []

    def take() -> None:
        while not taken or taken[-1] != last:
            if (value := latest.take()) is not None:
                taken.append(value)

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    for value in range(last + 1):
        latest.put(value)
    taking.join(PATIENCE_SECONDS)
    assert taken[-1] == last
    assert taken == sorted(set(taken))
    assert latest.take() is None


class Turns:
    """A watch that records its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.did: list[str] = []
        self.woken = threading.Event()
        self.turned = threading.Semaphore(0)
        self.notes: list[str] = []
        self.kernel = CountingKernel()
        self.thread = WatchThread(
            "evenkeel-test",
            "the watch of the test",
            begin=lambda: ["it could be better", ""],
            turn=self.turn,
            end=lambda driver: self.did.append(f"end {driver is self.kernel}"),
            wait=lambda seconds: self.woken.wait(PATIENCE_SECONDS),
            wake=self.woken.set,
            make_driver=lambda: self.kernel,
            noted=self.notes.append,
            after_failure_seconds=0.0,
        )

    def turn(self, driver: Driver) -> float:
        self.did.append(f"turn {driver is self.kernel}")
        self.woken.clear()
        self.turned.release()
        if self.errors:
            raise self.errors.pop(0)
        return 0.0


def test_a_watch_takes_a_turn_whenever_it_is_woken_until_it_is_stopped():
    watch = Turns()
    watch.thread.start()
    assert watch.turned.acquire(timeout=PATIENCE_SECONDS)
    watch.woken.set()
    assert watch.turned.acquire(timeout=PATIENCE_SECONDS)
    watch.thread.stop()
    assert watch.did[:2] == ["turn True", "turn True"]
    assert watch.did[-1] == "end True"
    assert watch.notes == ["it could be better"]


def test_an_error_in_a_turn_is_reported_and_does_not_end_the_watch():
    watch = Turns(EvenkeelError("no such file"), ZeroDivisionError())
    watch.thread.start()
    for _ in range(3):
        assert watch.turned.acquire(timeout=PATIENCE_SECONDS)
        watch.woken.set()
    watch.thread.stop()
    assert watch.notes == ["it could be better", "the watch of the test: no such file"]
    assert watch.did[-1] == "end True"


def test_a_call_after_the_end_of_the_loop_is_dropped():
    heard: list[int] = []
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop)
    calls.call(heard.append, 1)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    calls.call(heard.append, 2)
    assert heard == [1]
