"""Credentials for registries: from a pod's imagePullSecrets, from the files of this machine, and from the credential
helpers that these name. Also decides which pods may use an image that was pulled with a credential.

All have Docker's format, and the rules of kubelet decide which entry is for which image. A secret is never part of a
message, a log or a command line: `Credential` does not show it. The machine's files are read for each pull, so a
`docker login` has an effect at once. Every pod may use an image to which these files give access.

If an image was pulled with a pod's own password, only pods with a password that the registry has accepted for this
image may use it (kubelet's imagePullCredentialsVerificationPolicy). Otherwise a pod could run another one's private
images by their name. All pods may use an image that was pulled with the machine's credentials or without any, or that
was put there by hand."""

import base64
import binascii
import fnmatch
import hashlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from evenkeel.api.data_objects import SECRET, DataObject, PodData
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.environment import PATH
from evenkeel.runtime.images.references import DOCKER_HUB, ImageReference

_TOKEN_USER = "<token>"  # noqa: S105 a credential helper answers with this user if the secret is a token
_MOST_ENTRIES = 10_000
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


class Credential(NamedTuple):
    """A user and its password, or a token."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return "Credential(…)"

    def fingerprint(self, salt: str) -> str:
        """Identifies the credential without showing it."""
        return hashlib.sha256("\0".join((salt, *self)).encode("utf-8", "surrogateescape")).hexdigest()


class Keyring(NamedTuple):
    """The content of one file or Secret: credentials by registry, and the programs that know further ones."""

    entries: tuple[tuple[str, Credential], ...] = ()
    helpers: tuple[tuple[str, str], ...] = ()  # by registry: the name of a credential helper
    store: str = ""  # the helper for all other registries

    def __repr__(self) -> str:
        return f"Keyring({len(self.entries)} entries)"

    def matching(self, image: ImageReference) -> tuple[Credential, ...]:
        """Returns the credentials for an image; that of the longest path first."""
        found = [(key, credential) for key, credential in self.entries if matches(key, image)]
        return tuple(credential for _, credential in sorted(found, key=lambda one: one[0], reverse=True))

    def helper(self, image: ImageReference) -> tuple[str, str]:
        """Returns the helper for an image and the registry to ask it for; two empty strings if there is none."""
        for key, name in self.helpers:
            if matches(key, image):
                return name, key
        return (self.store, _asked_as(image)) if self.store else ("", "")


def keyring(text: str | bytes) -> Keyring:
    """Reads a Docker configuration: `.docker/config.json` and `kubernetes.io/dockerconfigjson`, or the older form of
    `.dockercfg`, which has the registries at its top. Raises ValueError; the message shows nothing of the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 the mistake is in the text
    is_new = any(key in value for key in ("auths", "credHelpers", "credsStore"))
    auths = value.get("auths") or {} if is_new else value
    if not isinstance(auths, dict) or len(auths) > _MOST_ENTRIES:
        raise ValueError("auths is not an object of registries")
    entries = [(key, found) for key, one in auths.items() if (found := _credential(one)) is not None]
    helpers = value.get("credHelpers") or {} if is_new else {}
    store = value.get("credsStore") or "" if is_new else ""
    return Keyring(
        tuple(entries),
        tuple((key, name) for key, name in helpers.items() if isinstance(name, str))
        if isinstance(helpers, dict)
        else (),
        store if isinstance(store, str) else "",
    )


def of_helper(answer: bytes) -> Credential | None:
    """Reads the answer of a credential helper; None if it has none."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    user, secret = value.get("Username"), value.get("Secret")
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    return Credential(identity_token=secret) if user == _TOKEN_USER else Credential(user, secret)


def auth_file(image: ImageReference, credential: Credential | None) -> bytes:
    """Writes the file that skopeo reads: this credential for the registry of this image, and nothing else."""
    if credential is None:
        return b'{"auths":{}}'
    pair = f"{credential.username}:{credential.password}".encode()
    entry: dict[str, str] = {}
    if credential.username:
        entry["auth"] = base64.b64encode(pair).decode()
    if credential.identity_token:
        entry["identitytoken"] = credential.identity_token
    if credential.registry_token:
        entry["registrytoken"] = credential.registry_token
    return json.dumps({"auths": {image.domain: entry}}).encode()


def matches(key: str, image: ImageReference) -> bool:
    """Whether an entry is for an image. The host may have `*` within a part, and a path stands for all below it."""
    host, path = _host_and_path(key)
    if not _host_matches(host, image.domain):
        return False
    return not path or image.path == path or image.path.startswith(path + "/")


def _host_and_path(key: str) -> tuple[str, str]:
    """`https://index.docker.io/v1/` is how Docker writes its own registry."""
    for scheme in ("https://", "http://"):
        key = key.removeprefix(scheme)
    host, _, path = key.partition("/")
    path = path.strip("/")
    if path in ("v1", "v2") or host in ("index.docker.io", "registry-1.docker.io"):
        path = "" if path in ("v1", "v2") else path
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = DOCKER_HUB
    return host, path


def _host_matches(pattern: str, host: str) -> bool:
    name, _, port = pattern.partition(":")
    wanted_name, _, wanted_port = host.partition(":")
    parts, wanted = name.split("."), wanted_name.split(".")
    if port != wanted_port or len(parts) != len(wanted):
        return False
    return all(fnmatch.fnmatchcase(one, part) for part, one in zip(parts, wanted, strict=True))


def _asked_as(image: ImageReference) -> str:
    return "https://index.docker.io/v1/" if image.domain == DOCKER_HUB else image.domain


def _credential(entry: object) -> Credential | None:
    if not isinstance(entry, Mapping):
        return None
    user, password = _text(entry, "username"), _text(entry, "password")
    pair = _text(entry, "auth")
    if pair:
        try:
            decoded = base64.b64decode(pair, validate=False).decode("utf-8", "surrogateescape").rstrip("\0")
        except (binascii.Error, ValueError):
            decoded = ""
        if ":" in decoded:
            user, _, password = decoded.partition(":")
    found = Credential(user, password, _text(entry, "identitytoken"), _text(entry, "registrytoken"))
    return found if any(found) else None


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def all_matching(keyrings: Iterable[Keyring], image: ImageReference) -> tuple[Credential, ...]:
    """Returns each credential once, in order."""
    return tuple(dict.fromkeys(one for ring in keyrings for one in ring.matching(image)))


_OF_TYPE = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}


def pod_keyrings(pod: Pod, data: PodData) -> tuple[Keyring, ...]:
    """Returns the content of the Secrets that the pod names in imagePullSecrets.

    As in kubelet, one that is missing, of another type or damaged is passed over. A Secret cannot name a credential
    helper: the helper would run on the host.
    """
    found = []
    for each in pod.spec.image_pull_secrets:
        secret = data.get((SECRET, each.name))
        if not isinstance(secret, DataObject):
            continue
        text = secret.content.get(_OF_TYPE.get(secret.type, ""))
        if text is not None:
            with suppress(ValueError):
                found.append(Keyring(keyring(text).entries))
    return tuple(found)


class Credentials(NamedTuple):
    """The credentials that a pod has for an image: of its own Secrets, and of the machine."""

    of_pod: tuple[Credential, ...] = ()
    of_host: tuple[Credential, ...] = ()

    @property
    def in_order(self) -> tuple[Credential | None, ...]:
        """As in kubelet, each is tried until one is accepted. Without any, the registry is asked without one."""
        return (*self.of_pod, *self.of_host) or (None,)


class ImageAccess(NamedTuple):
    """The passwords of pods that the registry accepted, as fingerprints. Without any, the image is for all."""

    salt: str = ""
    fingerprints: tuple[str, ...] = ()

    def allows(self, of_pod: tuple[Credential, ...]) -> bool:
        return not self.fingerprints or any(one.fingerprint(self.salt) in self.fingerprints for one in of_pod)

    def with_accepted(self, credential: Credential | None, known: Credentials) -> "ImageAccess":
        """The registry gave the same image for this credential, too."""
        return FOR_ALL if not self.fingerprints else _joined(self, credential, known)


FOR_ALL = ImageAccess()


def first_access(credential: Credential | None, known: Credentials) -> ImageAccess:
    """The access to an image that was pulled with this credential."""
    return _joined(ImageAccess(secrets.token_hex(8)), credential, known)


def _joined(access: ImageAccess, credential: Credential | None, known: Credentials) -> ImageAccess:
    if credential is None or credential not in known.of_pod:
        return FOR_ALL
    every = (*access.fingerprints, credential.fingerprint(access.salt))
    return access._replace(fingerprints=tuple(dict.fromkeys(every)))


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
        import shutil  # half a MiB, and few machines have such helpers

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
