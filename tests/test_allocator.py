"""Memory that the C library and asyncio keep. Each test has a process of its own, because these settings last as long
as the process."""

import subprocess
import sys

import pytest

from tests.arenas import arenas_of_threads
from tests.certificates import make_certificate

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


_FREE_PIECES = """
import ctypes, sys
from pathlib import Path
from evenkeel.host.allocator import give_back_memory
from evenkeel.host.protection import lock_memory

def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

if sys.argv[1] == "locked" and lock_memory("this"):
    sys.exit(3)
pieces = [bytes(64 << 10) for _ in range(512)]
kept = pieces[::16]
del pieces
before, locked = kib("VmRSS:"), kib("VmLck:")
give_back_memory()
print(before - kib("VmRSS:") > 16 << 10, (locked > 0) == (kib("VmLck:") > 0))
"""


@pytest.mark.parametrize("memory", ["locked", "not locked"])
def test_free_pieces_between_others_are_given_back_and_what_was_locked_stays_so(memory):
    ran = subprocess.run(
        [sys.executable, "-c", _FREE_PIECES, memory], capture_output=True, text=True, check=False
    )
    if ran.returncode == 3:
        pytest.skip("this user may not lock memory")
    assert ran.stdout.split() == ["True", "True"], ran.stderr


_TLS_CONNECTION = """
import asyncio, ssl, sys, tracemalloc
from evenkeel.host.allocator import keep_tls_buffers_small

async def main(certificate, key):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate, key)
    ours = ssl.create_default_context(cafile=certificate)
    sent = bytes(range(256)) * 4096

    async def answer(reader, writer):
        writer.write(sent)
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=theirs) as server:
        port = server.sockets[0].getsockname()[1]
        tracemalloc.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours)
        assert await reader.readexactly(len(sent)) == sent
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/sslproto.py")])
        print(sum(one.size for one in kept.traces))
        writer.close()

if sys.argv[1] == "small":
    keep_tls_buffers_small()
asyncio.run(main(*sys.argv[2:]))
"""


def test_a_tls_connection_keeps_a_small_buffer_and_all_data_comes(tmp_path):
    def kept(size: str) -> int:
        command = [sys.executable, "-c", _TLS_CONNECTION, size, *make_certificate(tmp_path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert kept("usual") > 256 << 10
    assert kept("small") < 128 << 10  # of both ends
