"""The initrd of a virtual machine: busybox, a few modules and the files of `guest/`."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.machines import kernel
from tests.machines.cache import made_once

GUEST = Path(__file__).parent / "guest"


def initrd(image: Path, others: Path | None = None, wanted: Sequence[str] = ()) -> Path:
    """A cpio archive, not compressed: an emulated processor takes longer to unpack it than to have it read. With the
    image's first modules, or `wanted` of those of another kernel."""
    files = sorted(path for path in GUEST.iterdir() if path.is_file())
    inputs = [image.name, *(part for path in files for part in (path.name, path.read_bytes()))]
    if others is None:
        return made_once("initrd", inputs, lambda target: _make(image, files, target)) / "initrd"
    named = [*inputs, str(others), *wanted]
    return (
        made_once("initrd-other", named, lambda target: _make(image, files, target, others, wanted))
        / "initrd"
    )


def _make(
    image: Path, files: list[Path], target: Path, others: Path | None = None, wanted: Sequence[str] = ()
) -> None:
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        tree = Path(scratch)
        for directory in ("bin", "dev", "guest", "proc", "sys"):
            (tree / directory).mkdir()
        if others is None:
            shutil.copytree(image / "modules", tree / "modules")
        else:
            (tree / "modules").mkdir()
            kernel.copy_modules(others, tree / "modules", wanted)
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
