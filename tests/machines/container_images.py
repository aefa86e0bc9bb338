"""Container images for tests, as archives that `ctr images import` reads; made here, so that no registry is needed.

`TEST` holds a static busybox, with its commands in /bin, and the programs of tests/kernel/programs under the very paths
that they have on the host: what a test pod says runs in the container as it does on the host.
"""

import hashlib
import io
import json
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.machines.cache import made_once
from tests.machines.programs import programs

TEST = "localhost/evenkeel-test:1"
PAUSE = "localhost/evenkeel-pause:1"
ARCHIVES = {TEST: "test.tar", PAUSE: "pause.tar"}

BUSYBOX = Path("/bin/busybox")
DIRECTORIES = ("bin", "dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "var")
# For containers that name a user: names are looked up here.
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
NEVER = "1970-01-01T00:00:00Z"


class Entry(NamedTuple):
    """Something in an image: a file, or with `link` a symbolic link."""

    name: str
    content: bytes = b""
    link: str = ""
    mode: int = 0o755


def container_images() -> Path:
    """A directory with the archives of `ARCHIVES`."""
    # Busybox is not among the inputs: a guest may have another one, and must find what was made on the host.
    return made_once("container-images", [str(programs()), Path(__file__).read_bytes()], _make)


def _make(target: Path) -> None:
    made = programs()
    entries = [
        *busybox(),
        *(Entry(str(path).removeprefix("/"), path.read_bytes()) for path in sorted(made.glob("[a-z]*"))),
    ]
    (target / ARCHIVES[TEST]).write_bytes(archive(TEST, entries, ["/bin/sh"]))
    pause = Entry("pause", (made / "pause").read_bytes())
    (target / ARCHIVES[PAUSE]).write_bytes(archive(PAUSE, [pause], ["/pause"]))


def busybox() -> list[Entry]:
    """A static busybox with its commands, and what looks up users."""
    commands = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return [
        Entry("bin/busybox", BUSYBOX.read_bytes()),
        *(Entry(f"bin/{name}", link="busybox") for name in commands if name != "busybox"),
        Entry("usr/bin", link="../bin"),
        *(Entry(name, text.encode(), mode=0o644) for name, text in ACCOUNTS.items()),
    ]


def archive(
    reference: str,
    entries: Iterable[Entry],
    command: list[str],
    *,
    entrypoint: Sequence[str] = (),
    user: str = "",
) -> bytes:
    """An image of one layer in the form of `docker save`."""
    layer = layer_of(entries)
    digest = hashlib.sha256(layer).hexdigest()
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": NEVER,
            "config": {
                **({"Entrypoint": list(entrypoint)} if entrypoint else {}),
                **({"User": user} if user else {}),
                "Cmd": command,
                "Env": ["PATH=/bin"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": NEVER}],
        }
    )
    config_name, layer_name = f"{hashlib.sha256(config).hexdigest()}.json", f"{digest}/layer.tar"
    manifest = _json([{"Config": config_name, "RepoTags": [reference], "Layers": [layer_name]}])
    return _tar([Entry(config_name, config), Entry(layer_name, layer), Entry("manifest.json", manifest)])


def layer_of(entries: Iterable[Entry], *, has_parents: bool = True) -> bytes:
    """A layer with these entries, and the directories that they are in."""
    whole = list(entries)
    if not has_parents:
        return _tar(whole)
    parents = {str(parent) for entry in whole for parent in Path(entry.name).parents} - {"."}
    return _tar(whole, directories=sorted(parents.union(DIRECTORIES)))


def _tar(entries: Iterable[Entry], directories: Iterable[str] = ()) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in directories:
            _add(tar, name, tarfile.DIRTYPE, 0o777 | stat.S_ISVTX if name == "tmp" else 0o755)
        for entry in entries:
            if entry.link:
                _add(tar, entry.name, tarfile.SYMTYPE, 0o777, link=entry.link)
            else:
                _add(tar, entry.name, tarfile.REGTYPE, entry.mode, entry.content)
    return content.getvalue()


def _add(
    tar: tarfile.TarFile, name: str, kind: bytes, mode: int, content: bytes = b"", link: str = ""
) -> None:
    information = tarfile.TarInfo(name)
    information.type, information.mode, information.linkname = kind, mode, link
    information.size = len(content)
    tar.addfile(information, io.BytesIO(content))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
