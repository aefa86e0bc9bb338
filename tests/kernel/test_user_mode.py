"""A kernel in user mode traces the processes of its guest. Without it they would run on as the host's, so what it runs
in must end with it, and hold nothing that is not the guest's."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel.agents import parent_of
from tests.kernel.live_tree import content
from tests.machines import PROJECT
from tests.machines.run import MACHINE_FAILED
from tests.machines.user_mode import require_user_mode
from tests.needing import needing

pytestmark = pytest.mark.cgroup("host")

WITHIN_MILLISECONDS = 60_000
# A second process in the guest, and one that never waits.
BUSY = 'sleep 1000 & echo "up"; while :; do :; done'
# All that the kernel's own process can reach, and a share that root of the guest would like to write to.
LOOK_AROUND = """
mount -t hostfs -o /../.. none /mnt && ls -1 /mnt /mnt/share
mount -o remount,rw "$PWD" && ! touch "$PWD/made-by-the-guest" 2>/dev/null && echo "nothing made"
"""


@pytest.fixture(autouse=True)
def _kernel() -> None:
    with needing():
        require_user_mode()


Start = Callable[[str], AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture
def started(tmp_path: Path) -> Start:
    """Start a run of such a machine. A run that is killed leaves its files behind, so they are the test's."""
    return lambda script: _started(script, tmp_path)


@contextmanager
def _started(script: str, files: Path) -> Iterator[subprocess.Popen[str]]:
    """The run ends with the test, whatever its result."""
    command = [sys.executable, "-m", "tests.machines", "run", "user-mode", "--name", "user-mode-test", "--"]
    command += ["sh", "-c", script]
    variables = {**os.environ, "TMPDIR": str(files)}
    with subprocess.Popen(command, cwd=PROJECT, env=variables, stdout=subprocess.PIPE, text=True) as run:
        try:
            yield run
        except BaseException:
            run.terminate()
            raise


def below(pid: int) -> list[int]:
    """The processes that it and its children have started."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def held(pids: Iterable[int]) -> dict[int, int]:
    """A pidfd of each that has not ended meanwhile."""
    found = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            found[pid] = os.pidfd_open(pid)
    return found


def is_kernel(pid: int) -> bool:
    """Its own process, or one of the guest, which is called alike."""
    return (content(Path(f"/proc/{pid}/cmdline")) or "").startswith("/linux\0")


def await_ends(descriptors: Iterable[int]) -> None:
    """Waits for the end of processes, by their pidfds."""
    for descriptor in descriptors:
        watched = select.poll()
        watched.register(descriptor, select.POLLIN)
        assert watched.poll(WITHIN_MILLISECONDS), content(Path(f"/proc/self/fdinfo/{descriptor}"))
        os.close(descriptor)


@pytest.mark.parametrize("killed", ["the run", "the kernel"])
def test_no_process_of_the_guest_outlives_the_run_or_the_kernel(killed: str, started: Start):
    with started(BUSY) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        guest = held(below(run.pid))
        (kernel,) = [pid for pid in guest if is_kernel(pid) and not is_kernel(parent_of(pid))]
        assert len([pid for pid in guest if parent_of(pid) == kernel]) > 2

        os.kill(run.pid if killed == "the run" else kernel, 9)

        await_ends(guest.values())
    assert run.returncode == (-9 if killed == "the run" else MACHINE_FAILED)


def test_a_kernel_that_fails_ends_the_machine(started: Start):
    with started("echo c >/proc/sysrq-trigger") as run:
        assert run.wait() == MACHINE_FAILED


def test_the_guest_reaches_nothing_of_the_host_but_what_is_shared_and_writes_only_to_its_job(started: Start):
    with started(LOOK_AROUND) as run:
        assert run.stdout
        said = run.stdout.read()
    names = "bin dev image initrd lib lib64 linux proc sbin share tmp usr whole_registers.so"
    assert said.split("\n\n") == [
        "\n".join(["/mnt:", *names.split()]),
        "/mnt/share:\njob\nmodules\nproject\nnothing made\n",
    ]
    assert not (PROJECT / "made-by-the-guest").exists()
