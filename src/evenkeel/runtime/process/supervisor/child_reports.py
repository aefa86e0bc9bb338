"""What a child of the supervisor reports: notes, errors, and that it is about to execute its program.

A report is lines: JSON objects, and a last one if the set-up succeeded. A container's first process writes them to a
socket. The processes of a command may hold no descriptor of ours, and write them to memory that they share with the
supervisor.
"""

import ctypes
import gc
import json
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.process.supervisor.program import NoProgram

ABOUT_TO_EXECUTE = b"exec"  # the last line of the report if the set-up succeeded

# Of an error, which names the program and so may be as long as a pod's manifest. An answer is one packet.
_MOST_CHARACTERS = 4096
_NUMBER_BYTES = 4  # the size in which the kernel writes a process's number

Say = Callable[[bytes], object]  # takes a line of the report


class Report(NamedTuple):
    """The report of a child, up to the execution of its program or to its failure."""

    error: str
    hint: str
    notes: tuple[str, ...]
    is_executed: bool
    exit_code: int = 0  # of a command that could not be executed: 126 or 127


class SharedReport:
    """The report of a command's two processes to the supervisor, in a page of memory that all three share."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._page.seek(_NUMBER_BYTES)

    @property
    def second(self) -> int:
        """The number of the second process; 0 if it does not exist yet."""
        return int.from_bytes(self._page[:_NUMBER_BYTES], sys.byteorder)

    @property
    def said(self) -> bytes:
        return self._page[_NUMBER_BYTES:].rstrip(b"\0")

    def number_at(self) -> int:
        """Returns the address to which the kernel writes the number of the second process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def say(self, line: bytes) -> None:
        room = len(self._page) - self._page.tell()
        self._page.write(line[:room])

    def close(self) -> None:
        self._page.close()


def read_report(read: bytes) -> Report:
    error = hint = ""
    exit_code = 0
    notes = []
    is_executed = False
    for line in read.splitlines():
        if line == ABOUT_TO_EXECUTE:
            is_executed = True
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "note" in said:
            notes.append(str(said["note"]))
        if "error" in said:
            error, hint = str(said["error"])[:_MOST_CHARACTERS], str(said.get("hint", ""))[:_MOST_CHARACTERS]
            exit_code = int(said.get("exit_code", 0))
    return Report(error, hint, tuple(notes), is_executed, exit_code)


def say_through(report: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(report, line)


def guarded(act: Callable[[], None], say: Say) -> NoReturn:
    """Runs `act` and ends the process. In no case does this process return to the supervisor's loop."""
    gc.disable()  # a collection would touch, and so copy, all memory of the supervisor
    try:
        act()
    except NoProgram as error:
        tell(say, error=error.message, hint=error.hint, exit_code=error.exit_code)
    except EvenkeelError as error:
        tell(say, error=error.message, hint=error.hint)
    except BaseException as error:  # noqa: BLE001
        why = reason(error) if isinstance(error, OSError) else repr(error)
        tell(say, error=f"the container could not be set up: {why}")
    finally:
        os._exit(1)
    raise AssertionError


def tell(say: Say, **said: str | int) -> None:
    """Says a line. No text in it is so long that the supervisor would have to read before all is said."""
    cut = {name: one[:_MOST_CHARACTERS] if isinstance(one, str) else one for name, one in said.items()}
    say(json.dumps(cut).encode() + b"\n")
