"""The kernel that a virtual machine boots, with the modules its first steps need, from an unpacked Debian tree."""

import lzma
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.machines import Unavailable

# Enough to reach the root image, the scratch disk, the shared directories and the output; the image holds the rest.
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio-rng", "virtiofs", "squashfs", "overlay")


PACKAGE = "linux-image-cloud-amd64"  # needs the newest kernel of the release
NUMBERED = re.compile(r"linux-image-[0-9].*-cloud-amd64")
# By the packages' version. 6.1.192-1: ext4 follows a null pointer (ext4_mb_load_buddy_gfp) once pages of its allocator
# were reclaimed. What did so hangs for ever, and the machine with it; echo 3 > /proc/sys/vm/drop_caches is enough.
BROKEN = frozenset(("6.1.192-1",))


class Kernel(NamedTuple):
    image: Path
    modules: Path


def kernel_package() -> str:
    """The package of the newest kernel that is not known to be broken, by the lists that apt has."""
    named = _apt_cache("pkgnames", "linux-image-").split()
    numbered = [name for name in named if NUMBERED.fullmatch(name)]
    return newest_sound(_apt_cache("madison", PACKAGE, *numbered))


def newest_sound(listed: str) -> str:
    """The package to install. `listed` is what `apt-cache madison` says: `PACKAGE | VERSION | SOURCE` in each line."""
    rows = [tuple(cell.strip() for cell in line.split("|")) for line in listed.splitlines()]
    offered = [(_numbers(version), version, name) for name, version, _ in rows]
    newest = max((one for one in offered if one[2] == PACKAGE), default=None)
    if newest is None or newest[1] not in BROKEN:
        return PACKAGE
    series = newest[0][:2]
    older = [
        one
        for one in offered
        if one < newest and one[0][:2] == series and one[1] not in BROKEN and one[2] != PACKAGE
    ]
    if not older:
        raise Unavailable(f"the kernel {newest[1]} is known to be broken, and apt knows no older one")
    return max(older)[2]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)))


def _apt_cache(*arguments: str) -> str:
    done = subprocess.run(["apt-cache", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"'apt-cache {arguments[0]}' failed: {done.stderr.strip() or 'it did not say why'}")
    return done.stdout


def find_kernel(tree: Path) -> Kernel:
    """The newest kernel of `tree`, by the date of its file: there is one, unless packages were added by hand."""
    images = sorted((tree / "boot").glob("vmlinuz-*"), key=lambda path: path.stat().st_mtime)
    if not images:
        raise Unavailable("the root image has no kernel: its package put none into /boot")
    version = images[-1].name.removeprefix("vmlinuz-")
    return Kernel(images[-1], tree / "lib" / "modules" / version)


def copy_modules(modules: Path, target: Path, wanted: Iterable[str] = MODULES) -> None:
    """Put the wanted modules and what they need into `target`, uncompressed, with their order in `order`."""
    order = []
    for name in load_order(
        (modules / "modules.dep").read_text(), (modules / "modules.builtin").read_text(), wanted
    ):
        source, file = modules / name, Path(name).name
        if file.endswith(".xz"):
            file = file.removesuffix(".xz")
            (target / file).write_bytes(lzma.decompress(source.read_bytes()))
        else:
            shutil.copyfile(source, target / file)
        order.append(file)
    (target / "order").write_text("".join(f"{file}\n" for file in order))


def load_order(dependencies: str, builtin: str, wanted: Iterable[str]) -> list[str]:
    """The files to load for `wanted`, each after those it needs; what is built in is left out.

    `dependencies` and `builtin` are the kernel's modules.dep and modules.builtin. A line of modules.dep lists
    what a module needs, to be loaded from the last to the first.
    """
    lines = (line.partition(":") for line in dependencies.splitlines())
    needs = {file: needed.split() for file, _, needed in lines}
    file_of = {_module_name(file): file for file in needs}
    built_in = {_module_name(file) for file in builtin.split()}
    order: dict[str, None] = {}
    for name in map(_module_name, wanted):
        if name in built_in:
            continue
        if name not in file_of:
            raise Unavailable(f"the kernel of the root image has no module {name}")
        for file in (*reversed(needs[file_of[name]]), file_of[name]):
            order[file] = None
    return list(order)


def _module_name(file: str) -> str:
    # Module names do not tell '-' from '_'.
    return Path(file).name.partition(".ko")[0].replace("-", "_")
