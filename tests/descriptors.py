"""Counting the descriptors of a process, where nothing else opens or closes any."""

import functools
import gc
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def descriptors() -> int:
    gc.collect()  # objects that earlier tests left could be closed at any moment
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test in a child of this process: threads that tests before it left, such as gRPC's, are not in there.
    What those tests have left is collected here, and is frozen in the child: gRPC's objects wait for such threads when
    they are collected."""

    @functools.wraps(test)
    def in_child(*arguments: Any, **named: Any) -> None:
        reading, writing = os.pipe()
        gc.collect()
        gc.freeze()
        with warnings.catch_warnings():
            # Descriptors of other threads do not matter here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            failure = "it ended in the middle"
            try:
                os.close(reading)
                test(*arguments, **named)
                failure = ""
            except BaseException:  # noqa: BLE001
                failure = traceback.format_exc()
            finally:
                os.write(writing, failure.encode()[-60_000:])
                os._exit(0)
        gc.unfreeze()
        os.close(writing)
        with os.fdopen(reading) as report:
            failure = report.read()
        assert os.waitpid(pid, 0)[1] == 0
        assert not failure, failure

    return in_child
