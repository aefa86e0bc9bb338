"""References to images in registries: `nginx`, `registry.example:5000/team/app:1.2`, `app@sha256:…`. Pure.

The grammar and the defaults are Docker's (github.com/distribution/reference), as in kubelet, containerd and skopeo.
"""

import re

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

DOCKER_HUB = "docker.io"
_FORMER_DOCKER_HUB = "index.docker.io"
_OFFICIAL = "library/"  # the namespace of Docker Hub's own images
LATEST = "latest"
_LONGEST_NAME = 255
_HEX_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}

_COMPONENT = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = re.compile(rf"(?:{_COMPONENT}(?:\.{_COMPONENT})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PATH_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"([A-Za-z][A-Za-z0-9]*):([0-9a-f]+)")
_WHOLE_DIGEST = re.compile(r"[0-9a-f]{64}")


HOST = "host"  # an image: the files of the machine


def is_of_registry(image: str) -> bool:
    """Whether the image is neither the host nor a path. Its name may still be invalid."""
    return image != HOST and not image.startswith("/") and not is_relative(image)


def is_relative(image: str) -> bool:
    """Whether the image is a path relative to its manifest."""
    return image.startswith(("./", "../")) or image in (".", "..")


class InvalidReference(EvenkeelError):
    """The text does not name an image in a registry."""


class ImageReference(NamedTuple):
    """An image in a registry. It has a tag or a digest, or both; the digest then decides."""

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        return f"{self.domain}/{self.path}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"

    def at(self, digest: str) -> "ImageReference":
        """The same image, pinned to a digest."""
        return self._replace(tag="", digest=digest)


def parse(text: str) -> ImageReference:
    """Reads a reference. A missing registry is Docker Hub, a missing tag `latest`. Raises InvalidReference."""
    named, has_digest, digest = text.partition("@")
    if has_digest:
        _check_digest(text, digest)
    slash = named.rfind("/")
    colon = named.find(":", slash + 1)
    name, tag = (named, "") if colon < 0 else (named[:colon], named[colon + 1 :])
    if colon >= 0 and not _TAG.fullmatch(tag):
        raise _invalid(text, f"the tag {tag[:60]!r} must have letters, digits, _ . and -, and at most 128")
    domain, path = _split(name)
    if not _DOMAIN.fullmatch(domain):
        raise _invalid(text, f"{domain[:60]!r} is no host of a registry")
    if path != path.lower():
        raise _invalid(text, "the name must be in lower case")
    if not _PATH.fullmatch(path):
        raise _invalid(text, "write NAME, NAME:TAG, REGISTRY/NAME:TAG or NAME@sha256:DIGEST")
    if _WHOLE_DIGEST.fullmatch(name):
        raise _invalid(text, "a name of 64 hexadecimal digits would be taken for a digest")
    if len(domain) + 1 + len(path) > _LONGEST_NAME:
        raise _invalid(text, f"the name has more than {_LONGEST_NAME} characters")
    return ImageReference(domain, path, tag or ("" if has_digest else LATEST), digest)


def is_digest(text: object) -> bool:
    """Whether the text is a SHA-256 digest, the only kind that images use."""
    return isinstance(text, str) and bool(re.fullmatch(r"sha256:[0-9a-f]{64}", text))


def _split(name: str) -> tuple[str, str]:
    """Separates the registry from the path, as Docker does: `team/app` is on Docker Hub, `team.example/app` is not."""
    first, slash, rest = name.partition("/")
    is_domain = slash and (
        "." in first
        or ":" in first
        or first == "localhost"
        or first.lower() != first
        or first.startswith("[")
    )
    domain, path = (first, rest) if is_domain else (DOCKER_HUB, name)
    if domain == _FORMER_DOCKER_HUB:
        domain = DOCKER_HUB
    if domain == DOCKER_HUB and "/" not in path:
        path = _OFFICIAL + path
    return domain, path


def _check_digest(text: str, digest: str) -> None:
    match = _DIGEST.fullmatch(digest)
    if match is None or _HEX_DIGITS.get(match[1]) != len(match[2]):
        raise _invalid(text, "a digest is sha256: and 64 hexadecimal digits")
    if match[1] != "sha256":
        raise _invalid(text, f"digests of {match[1]} are not used by registries: write one of sha256")


def _invalid(text: str, why: str) -> InvalidReference:
    return InvalidReference(f"image {text[:200]!r} is no reference to an image: {why}")
