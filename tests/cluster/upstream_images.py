"""Stand-ins for the images of upstream's end-to-end tests, made here: the same programs on a static busybox.

Images that are not in `_MADE` have no stand-in, and tests that need them fail because the image cannot be pulled."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.authority import Authority
from tests.cluster.binaries import end_to_end_programs
from tests.machines.container_images import Entry, archive, busybox
from tests.machines.packages import unpacked
from tests.machines.programs import programs

# Where the tests look for images instead of upstream's registries.
REGISTRY = "localhost/upstream"
REGISTRIES = ("promoterE2eRegistry", "gcRegistry", "dockerLibraryRegistry")
# The user and the group that the tests expect in agnhost.
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
    "user-defined-in-image:x:1000:1000::/home:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n"
    "group-defined-in-image:x:50000:user-defined-in-image\n",
}
# The tests fetch pages with curl, whose address comes last; busybox has wget.
_CURL = b'#!/bin/sh\nfor address; do :; done\nexec wget -q -O - "$address"\n'
_SETUID = 0o4755
_NGINX = ("httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html")


class Made(NamedTuple):
    """What an image has beside busybox."""

    entries: Sequence[Entry]
    command: list[str]
    entrypoint: Sequence[str] = ()
    user: str = ""


def redirection(directory: Path) -> Path:
    """The file that KUBE_TEST_REPO_LIST names."""
    path = directory / "registries.yaml"
    path.write_text("".join(f"{name}: {REGISTRY}\n" for name in REGISTRIES))
    return path


def images(directory: Path) -> dict[str, Path]:
    """Archives of the images that the tests name and we can make, by reference."""
    listed = subprocess.run(
        [end_to_end_programs() / "e2e.test", "--list-images"],
        env={**os.environ, "KUBE_TEST_REPO_LIST": str(redirection(directory))},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    # Some tests look for variables whose names busybox's shell drops.
    bash = (unpacked("bash-static") / "bin/bash-static").read_bytes()
    shells = [Entry("bin/sh", bash), Entry("bin/bash", link="sh")]
    # Of agnhost's servers with TLS; hooks and probes do not check it.
    pair = Authority(directory / "keys").server("localhost", "DNS:localhost")
    certificate = [Entry(path.name, path.read_bytes(), mode=0o644) for path in pair]
    found = {}
    for reference in sorted(set(listed)):
        name = reference.removeprefix(f"{REGISTRY}/").partition(":")[0]
        if reference.startswith(REGISTRY) and name in _MADE:
            made = _MADE[name]()
            entries = [*shells, *certificate, *made.entries]
            path = directory / f"{reference.replace('/', '_')}.tar"
            base = [entry for entry in busybox() if entry.name not in {one.name for one in entries}]
            content = archive(
                reference,
                [*base, *entries],
                made.command,
                entrypoint=made.entrypoint,
                user=made.user,
            )
            path.write_bytes(content)
            found[reference] = path
    return found


def _agnhost() -> Made:
    program = (end_to_end_programs() / "agnhost").read_bytes()
    accounts = [Entry(name, text.encode(), mode=0o644) for name, text in _ACCOUNTS.items()]
    others = [Entry("agnhost-2", link="agnhost"), Entry("uploads/.keep"), Entry("bin/curl", _CURL)]
    return Made([Entry("agnhost", program), *others, *accounts], ["pause"], entrypoint=("/agnhost",))


def _nonewprivs() -> Made:
    program = (end_to_end_programs() / "nonewprivs").read_bytes()
    return Made([Entry("usr/local/bin/nnp", program, mode=_SETUID)], ["/usr/local/bin/nnp"])


def _pause() -> Made:
    return Made([Entry("pause", (programs() / "pause").read_bytes())], [], entrypoint=("/pause",))


def _nginx() -> Made:
    page = Entry("usr/share/nginx/html/index.html", b"a page\n", mode=0o644)
    return Made([page], list(_NGINX))


_MADE: dict[str, Callable[[], Made]] = {
    "agnhost": _agnhost,
    "busybox": lambda: Made([], ["sh"]),
    "glibc-dns-testing": lambda: Made([], ["sh"]),  # asked for `hostname -f`
    "nginx": _nginx,
    "nonewprivs": _nonewprivs,
    "nonroot": lambda: Made([], ["id", "-u"], user="1234"),
    "pause": _pause,
}
