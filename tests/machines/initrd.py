"""What the kernel of a virtual machine starts from: busybox, a few modules and the files of `guest/`."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.machines.cache import made_once

GUEST = Path(__file__).parent / "guest"


def initrd(image: Path) -> Path:
    """A cpio archive, not compressed: an emulated processor takes longer to unpack it than to have it read."""
    files = sorted(path for path in GUEST.iterdir() if path.is_file())
    inputs = [image.name, *(part for path in files for part in (path.name, path.read_bytes()))]
    return made_once("initrd", inputs, lambda target: _make(image, files, target)) / "initrd"


def _make(image: Path, files: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        tree = Path(scratch)
        for directory in ("bin", "dev", "guest", "proc", "sys"):
            (tree / directory).mkdir()
        shutil.copytree(image / "modules", tree / "modules")
        shutil.copyfile(image / "busybox", tree / "bin" / "busybox")
        (tree / "bin" / "busybox").chmod(0o755)
        for path in files:
            shutil.copy(path, tree / "guest")
        (tree / "init").symlink_to("guest/init")
        names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
        with (target / "initrd").open("wb") as archive:
            subprocess.run(
                ["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"],
                input=names.encode(), stdout=archive, cwd=tree, check=True,
            )  # fmt: skip
