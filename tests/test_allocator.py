"""Memory that the C library keeps. Each test has a process of its own, because these settings last as long as the
process."""

import subprocess
import sys

import pytest

from tests.arenas import arenas_of_threads

THREADS = 6
_THREADS_ALLOCATE = f"""
import threading
kept, barrier = [], threading.Barrier({THREADS + 1})

def allocate():
    kept.append(bytes(100_000))
    barrier.wait()

for _ in range({THREADS}):
    threading.Thread(target=allocate, daemon=True).start()
barrier.wait()
print(Path("/proc/self/maps").read_text())
"""
_LARGE_AFTER_LARGER = """
larger = bytes(1 << 20)
del larger
large = bytes(1 << 19)
heaps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]")]
ranges = [[int(address, 16) for address in heap.split()[0].split("-")] for heap in heaps]
print(any(first <= id(large) < end for first, end in ranges))
"""


def _said(program: str, *, keeps_little: bool) -> str:
    lines = ["from pathlib import Path", "from evenkeel.host.allocator import keep_little"]
    text = "\n".join([*lines, "keep_little()" if keeps_little else "", program])
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout


def test_threads_share_one_arena():
    if not arenas_of_threads(_said(_THREADS_ALLOCATE, keeps_little=False)):
        pytest.skip("threads have no arenas of their own here")
    assert arenas_of_threads(_said(_THREADS_ALLOCATE, keeps_little=True)) == 0


def test_a_large_piece_is_not_in_the_heap_after_a_larger_one_was_freed():
    if _said(_LARGE_AFTER_LARGER, keeps_little=False).strip() != "True":
        pytest.skip("it is not in the heap in any case")
    assert _said(_LARGE_AFTER_LARGER, keeps_little=True).strip() == "False"
