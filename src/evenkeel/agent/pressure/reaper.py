"""Gives back the memory of those who were killed, beside their own ending, which may have to wait for its turn.

It is work, a tenth of a second for a gigabyte: a thread of its own does it, so that the watch goes on watching.
"""

import queue
import threading

from evenkeel.host.dying import Dying
from evenkeel.host.protection import name_thread, run_before_others


class Reaper:
    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Dying | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self, dying: Dying) -> None:
        """They were killed; `dying` is closed when their memory is back."""
        self._work.put(dying)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        name_thread("evenkeel-reaper")
        run_before_others()
        while (dying := self._work.get()) is not None:
            try:
                dying.hurry()
                dying.release()
            finally:
                dying.close()
