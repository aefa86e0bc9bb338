"""The credentials of this machine: Docker's and kubelet's files of root, and the credential helpers that they name.

They are read for each pull, so a `docker login` has an effect at once. Every pod may use what they give access to.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence

from evenkeel.runtime.environment import PATH
from evenkeel.runtime.images.credentials import Credential, Keyring, all_matching, keyring, of_helper
from evenkeel.runtime.images.references import ImageReference

# In this order: kubelet's, Docker's, and those of podman, skopeo and buildah.
_FILES = (
    "/var/lib/kubelet/config.json",
    "~/.docker/config.json",
    "~/.dockercfg",
    "/run/containers/{uid}/auth.json",
    "~/.config/containers/auth.json",
)
_MOST_BYTES = 1 << 20
_HELPER = "docker-credential-"
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 30.0


def default_files() -> tuple[str, ...]:
    return tuple(os.path.expanduser(path.format(uid=os.geteuid())) for path in _FILES)


class HostCredentials:
    """`files` are paths; one that is missing or damaged is passed over, as in kubelet. `helpers` is where credential
    helpers are looked for."""

    def __init__(self, files: Callable[[], Sequence[str]] = default_files, helpers: str = PATH) -> None:
        self._files = files
        self._helpers = helpers

    def matching(self, image: ImageReference) -> tuple[Credential, ...]:
        """Returns the credentials for an image. Blocks: it reads files, and runs helpers."""
        rings = [ring for path in self._files() if (ring := _read(path)) is not None]
        found = list(all_matching(rings, image))
        for ring in rings:
            name, registry = ring.helper(image)
            if name and (asked := self._ask(name, registry)) is not None:
                found.append(asked)
        return tuple(dict.fromkeys(found))

    def _ask(self, name: str, registry: str) -> Credential | None:
        """Runs `docker-credential-NAME get`. No shell reads the name, and no variable of ours gets there."""
        if not _HELPER_NAME.fullmatch(name):
            return None
        program = shutil.which(_HELPER + name, path=self._helpers)
        if program is None:
            return None
        try:
            done = subprocess.run(  # noqa: S603 the name is checked, and root's own file has it
                [program, "get"],
                input=registry.encode(),
                capture_output=True,
                timeout=_HELPER_SECONDS,
                env={"PATH": self._helpers, "HOME": os.path.expanduser("~")},
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return None if done.returncode else of_helper(done.stdout)


def _read(path: str) -> Keyring | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return keyring(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
