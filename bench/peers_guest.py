"""`python -m bench.peers_guest WATCHER EARLYOOM OOMD`: the storms of `bench peers`, on a machine that is thrown away.

The watchers of memory run one after the other. In each storm a pod (or a cgroup, for a program that knows no pods)
grows until it is stopped. A line of JSON has the outcome (`bench_peers.Storm`). Nothing is put back as it was."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.cgroups import UNIFIED, Cgroup, hierarchies
from tests.kernel.systemd import start_slice, stop_unit
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

from bench.bench_peers import (
    AGENT,
    EARLYOOM,
    GUEST_MIB,
    KINDS,
    LINE_MIB,
    OOMD,
    PATIENCE_SECONDS,
    ROUNDS,
    Kind,
    available_mib,
    oom_kills,
    storm_of,
)
from bench.evicting_agent import is_under_pressure, pod, running

MIB = 1 << 20
RISE_MIB = 16  # so much is back: the growth was stopped
HIGH_MIB = 8  # above the line, for a watcher that acts on stalls alone
# More than is left; of more than there is the kernel would not hear.
ALLOCATOR_BYTES = GUEST_MIB * 7 // 8 * MIB
FILE = Path("/scratch/file")
FILE_MIB = 64
START_SECONDS = 120.0  # emulated, everything takes its time

Begin = Callable[[list[str]], Callable[[], None]]  # starts a command; what it returns ends what is left of it


def main(watcher: str, earlyoom: str, oomd: str) -> None:
    if os.environ.get("EVENKEEL_MACHINE") != "systemd":
        sys.exit(
            "This uses up the machine's memory and changes its system: it is for the guest of `bench peers`."
        )
    _install(Path(oomd))
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={FILE}", "bs=1M", f"count={FILE_MIB}", "conv=fsync"], check=True
    )
    guards = {AGENT: agent, EARLYOOM: lambda: standing_by(earlyoom), OOMD: watched_slice}
    for name, guard in guards.items():
        with guard() as begin:
            for kind in KINDS:
                for _ in range(ROUNDS):
                    print(storm(name, kind, begin, watcher), flush=True)


def storm(guard: str, kind: Kind, begin: Begin, watcher: str) -> str:
    Path("/proc/sys/vm/drop_caches").write_text("1")  # the pages of a file are charged to its first reader
    kills_before = oom_kills(Path("/proc/vmstat").read_text())
    numbers = (LINE_MIB * 1024, RISE_MIB * 1024, PATIENCE_SECONDS)
    with subprocess.Popen([watcher, *map(str, numbers)], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "ready\n"
        end = begin(allocator(kind))
        said = watching.stdout.read()
    assert watching.returncode == 0, f"nobody crossed the line: {watching.returncode}"
    is_kernels = oom_kills(Path("/proc/vmstat").read_text()) > kills_before
    end()
    return storm_of(guard, kind, said, is_kernels=is_kernels).to_json()


def allocator(kind: Kind) -> list[str]:
    grow = [str(programs() / "grow"), "anon", str(ALLOCATOR_BYTES), str(kind.rate_mib * MIB)]
    if not kind.has_files:
        return grow
    return ["sh", "-c", f'(while cat {FILE}; do sleep 0.1; done) >/dev/null & exec "$@"', "sh", *grow]


# Who guards


@contextmanager
def agent() -> Iterator[Begin]:
    def begin(command: list[str]) -> Callable[[], None]:
        client.apply(pod("eater", command))
        return end

    def end() -> None:
        client.delete("default", "eater", 0)
        eventually(lambda: client.pod_or_none("default", "eater") is None, within_seconds=START_SECONDS)
        eventually(lambda: not is_under_pressure(client), within_seconds=START_SECONDS)

    flags = ("--cgroup-driver", "systemd")
    with running("/scratch/state", LINE_MIB, *flags, patience_seconds=START_SECONDS) as (client, _):
        yield begin


@contextmanager
def standing_by(earlyoom: str) -> Iterator[Begin]:
    """Runs earlyoom, which watches the whole machine. It is configured to kill at the same threshold."""
    line_kib = LINE_MIB * 1024
    command = [f"{earlyoom}/usr/bin/earlyoom", "-p", "-r", "0", "-M", f"{line_kib},{line_kib}"]
    silence = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=silence, stdout=silence, stderr=silence)
    yield lambda allocator: _placed(allocator, {})
    assert process.poll() is None, f"earlyoom ended with {process.returncode}"
    process.terminate()
    process.wait()


@contextmanager
def watched_slice() -> Iterator[Begin]:
    """systemd-oomd acts on stalls: the allocator is made to stall just above the line. After a kill it does nothing for
    15 s, and what a slice has stalled counts for longer than that: both are new each time."""

    def begin(allocator: list[str]) -> Callable[[], None]:
        subprocess.run(["systemctl", "restart", "systemd-oomd"], check=True)
        percent = (2**32 - 1) // 100
        kill = {
            "ManagedOOMMemoryPressure": ("s", "kill"),
            "ManagedOOMMemoryPressureLimit": ("u", str(percent)),
        }
        headroom_mib = available_mib(Path("/proc/meminfo").read_text()) - LINE_MIB
        return _placed(allocator, kill, (headroom_mib + HIGH_MIB) * MIB)

    yield begin


def _placed(
    allocator: list[str], properties: dict[str, tuple[str, str]], high_bytes: int | None = None
) -> Callable[[], None]:
    """Starts it in a cgroup of a slice of its own; what is returned ends all of that."""
    unit = "peers.slice"
    start_slice(unit, {"MemoryMax": ("t", str(1 << 40)), **properties})
    place = Cgroup({UNIFIED: hierarchies()[UNIFIED] / unit}).child("eater")
    if high_bytes is not None:
        place.write("memory.high", high_bytes)
    process = subprocess.Popen([str(programs() / "enter"), "-", str(place.paths()[0]), "--", *allocator])

    def end() -> None:
        place.remove()
        process.wait()
        stop_unit(unit)
        eventually(lambda: not place.paths()[0].parent.exists())

    return end


def _install(oomd: Path) -> None:
    """Installs systemd-oomd as its package does, but with the shortest time that it accepts."""
    for source, target in (("lib", "/usr/lib"), ("usr", "/usr"), ("etc", "/etc")):
        shutil.copytree(oomd / source, target, dirs_exist_ok=True, symlinks=True)
    settings = Path("/etc/systemd/oomd.conf.d/tuned.conf")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[OOM]\nDefaultMemoryPressureDurationSec=1s\n")
    for command in (
        ["systemd-sysusers"],
        ["systemctl", "daemon-reload"],
        ["busctl", "call", "org.freedesktop.DBus", "/", "org.freedesktop.DBus", "ReloadConfig"],
    ):
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
