"""This machine itself, with its own cgroups, and what we need to be here."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evenkeel.api.config import Profile
from evenkeel.host.kernel_settings import kernel_settings
from tests.kernel.cgroups import hierarchies
from tests.machines import PROJECT, Unavailable
from tests.machines.cache import CACHE

# A test run that is interrupted ends its agents with their pods, and a cluster; that much time it has.
INTERRUPTED_SECONDS = 180.0
OWN_OF_PODS = ("/tmp", "/var/tmp", "/run")
LEAST_PRIORITY = 19
AUTOGROUP = Path("/proc/self/autogroup")


def require_root() -> None:
    if os.geteuid() != 0:
        raise Unavailable("you are not root: run it with sudo")


def require_cgroups() -> None:
    """Cgroups that we may make: in a container they are often read-only."""
    found = hierarchies()
    if not found:
        raise Unavailable("no cgroup hierarchy is mounted")
    refused = sorted({str(path) for path in found.values() if not os.access(path, os.W_OK)})
    if refused:
        raise Unavailable(f"no cgroups can be made in {', '.join(refused)}: read-only")


def require_seen_by_pods(cache: Path = CACHE) -> None:
    """Pods of `image: host` run programs of the cache under their paths on this machine."""
    for directory in OWN_OF_PODS:
        if cache.is_relative_to(directory):
            raise Unavailable(
                f"{cache} is below {directory}, and pods have a {directory} of their own: clone the project elsewhere"
            )


def give_way() -> None:
    """From now on this process, and all that it starts, gets the processor time that others leave. Where the kernel
    divides time among sessions first, a process that leads one does so for it, too."""
    os.nice(LEAST_PRIORITY)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # the kernel does not
            AUTOGROUP.write_text(str(LEAST_PRIORITY))


@contextlib.contextmanager
def kernel_settings_kept(proc: str = "/proc") -> Iterator[None]:
    """The settings of the whole machine that agents change are as before at the end. An agent of a cluster changes them
    as kubelet does, and one that is killed does not put them back. For a whole run: its parts are beside each other."""
    files = [Path(one.path(proc)) for one in kernel_settings(Profile.KUBERNETES)]
    before = {file: text for file in files if (text := _read(file)) is not None}
    try:
        yield
    finally:
        for file, text in before.items():
            if _read(file) != text:
                file.write_text(text)


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:  # this kernel does not have it
        return None


def run(command: Sequence[str], variables: Mapping[str, str], *, time_limit_seconds: float) -> int:
    """Run `command` here, with the Python that runs us first on its path; its exit status, 124 if time is over."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    began = time.monotonic()
    # Without us it ends as well.
    ends_with_us = ["setpriv", "--pdeathsig", "TERM", "--"]
    process = subprocess.Popen(
        [*ends_with_us, *command], cwd=PROJECT, env={**os.environ, "PATH": path, **variables}
    )
    try:
        status = process.wait(timeout=time_limit_seconds)
    except subprocess.TimeoutExpired:
        print(f"host: the time limit of {time_limit_seconds:g} s is over", file=sys.stderr)
        status = 124
    finally:
        _end(process)
    print(f"host: the job took {time.monotonic() - began:.1f} s, exit status {status}", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=INTERRUPTED_SECONDS)
        process.kill()
        process.wait()
