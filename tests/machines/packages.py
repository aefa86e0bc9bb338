"""The Debian packages that the machines are made with, installed where they are missing and we may."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.machines import Unavailable
from tests.machines.cache import CACHE, locked, made_once

PROGRAMS = ("gcc", "libc6-dev")
IMAGES = ("busybox-static",)
NETWORKS = ("containernetworking-plugins", "iptables")  # CNI plugins, and what they use
BROWSER = ("chromium", "fonts-dejavu-core")
# By the program that is looked for first: one that another package has brought is as good, and is not to be replaced.
CONTAINERD = {"containerd": "containerd", "runc": "runc"}
VIRTUAL_MACHINE = (
    "cpio",
    "e2fsprogs",
    "mmdebstrap",
    "mount",
    "python3-venv",
    "qemu-system-x86",
    "squashfs-tools",
    "util-linux",
)

# Debian 12 has it with QEMU, later releases in a package of its own.
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))

# The lists have a lock of their own, for which apt has no timeout. What it says last where another holds it.
LISTS_LOCKED = "Unable to lock directory"
LISTS_SECONDS = 300.0


def require(packages: Iterable[str]) -> None:
    """Have `packages` installed, or raise `Unavailable` with the command that would do it."""
    missing = _missing(packages)
    if not missing:
        return
    if os.geteuid() != 0:
        raise Unavailable(f"packages are missing: run 'sudo apt-get install {' '.join(missing)}'")
    with locked("packages"):
        missing = _missing(missing)
        if missing:
            print(f"installing {' '.join(missing)}", file=sys.stderr)
            apt_get("update")
            apt_get("install", "-y", "--no-install-recommends", "--no-remove", *missing)


def require_containerd() -> None:
    require(package for program, package in CONTAINERD.items() if shutil.which(program) is None)


def unpacked(package: str, *, cache: Path = CACHE) -> Path:
    """The files of a package below a directory of our own: for programs whose installation would start a service."""

    def fetch(directory: Path) -> None:
        try:
            apt_get("download", package, directory=directory)
        except Unavailable:
            apt_get("update")  # there are no package lists yet, or they name a version that is gone
            apt_get("download", package, directory=directory)
        for archive in directory.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(archive), str(directory / "files")])
            archive.unlink()

    return made_once(package, [package], fetch, cache=cache) / "files"


def virtiofsd() -> Path:
    """The program that shares a directory with a guest."""
    if not any(path.exists() for path in VIRTIOFSD):
        require(["virtiofsd"])
    for path in VIRTIOFSD:
        if path.exists():
            return path
    raise Unavailable(f"virtiofsd is at none of {', '.join(map(str, VIRTIOFSD))}")


def apt_get(*arguments: str, directory: Path | None = None) -> None:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    shown = f"apt-get {' '.join(arguments)}"
    deadline = time.monotonic() + LISTS_SECONDS
    with locked("apt"):  # apt does not wait for other users of its lists
        while True:
            try:
                _run(command, shown, directory, environment)
            except (
                Unavailable
            ) as reason:  # nor for those outside this project: the system's own, on a new machine
                if LISTS_LOCKED not in str(reason) or time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return


def _run(
    command: list[str],
    shown: str = "",
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `command`, or raise `Unavailable` with the last words of one that fails. `shown` is its short form."""
    try:
        result = subprocess.run(
            command,
            check=False,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not here: the machines are made from Debian packages") from None
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise Unavailable(
            f"'{shown or ' '.join(command)}' failed: {said[-1] if said else 'it did not say why'}"
        )


def _missing(packages: Iterable[str]) -> list[str]:
    wanted = list(packages)
    if not wanted:
        return []
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\\n", *wanted]
    try:
        listed = subprocess.run(query, check=False, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise Unavailable("dpkg is not here: the machines are made from Debian packages") from None
    installed = {line.split()[0] for line in listed.splitlines() if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]
