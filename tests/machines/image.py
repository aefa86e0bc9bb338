"""The root image of the virtual machines: a minimal Debian of the host's own release, as a squashfs file.

One image serves both: the plain machine starts the job directly, the other starts systemd first. Being of the
host's release it has the host's /usr/bin/python3, so an environment made here works there.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.machines import Unavailable, kernel, packages
from tests.machines.cache import made_once

PACKAGES = (
    "busybox-static",
    "containerd",
    "dbus",
    "kmod",
    "libstdc++6",  # for compiled Python packages
    "procps",
    "python3",
    "runc",
    "systemd",
    "tzdata",
)
OPTIONS = (
    "--variant=essential",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
)


def root_image() -> Path:
    """A directory with `root.squashfs`, its kernel `vmlinuz`, `busybox`, and `modules` to begin with."""
    release = _release()
    return made_once(
        "image",
        [release, *PACKAGES, *OPTIONS, *kernel.MODULES, *sorted(kernel.BROKEN)],
        lambda target: _make(release, target),
    )


def _make(release: str, target: Path) -> None:
    print("making the root image of the virtual machines, once (about a minute)", file=sys.stderr)
    packages.apt_get("update")
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        tree = Path(scratch) / "root"
        include = f"--include={','.join((*PACKAGES, kernel.kernel_package()))}"
        # INITRD=No: the kernel's package would spend a quarter of a minute on an initrd that we do not use.
        _run(["mmdebstrap", *OPTIONS, include, release, str(tree), *sources(release)], INITRD="No")
        found = kernel.find_kernel(tree)
        shutil.copyfile(found.image, target / "vmlinuz")
        shutil.copyfile(tree / "bin" / "busybox", target / "busybox")
        (target / "modules").mkdir()
        kernel.copy_modules(found.modules, target / "modules")
        _run(["mksquashfs", str(tree), str(target / "root.squashfs"), "-comp", "lz4", "-no-xattrs", "-quiet"])


def sources(release: str) -> list[str]:
    """The host's own package sources for `release`, one a line as sources.list(5) has it."""
    lines = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
         "Created-By: Packages", "Origin: Debian"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    split = [line.split(" ", 1) for line in lines]
    found = [line for suite, line in split if suite == release or suite.startswith(f"{release}-")]
    if not found:
        raise Unavailable(f"apt knows no source of Debian {release}")
    return found


def _release() -> str:
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian" or "VERSION_CODENAME" not in system:
        raise Unavailable(
            f"this is {system.get('PRETTY_NAME', 'unknown')}: the virtual machines are made on Debian only"
        )
    return system["VERSION_CODENAME"]


def _run(command: list[str], **environment: str) -> None:
    result = subprocess.run(
        command,
        check=False,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise Unavailable(f"the root image could not be made: {command[0]}: {said[-1] if said else 'failed'}")
