"""The manifest and the configuration of an OCI image, as far as a container needs them. Both are not trusted. Pure."""

import json
import signal
from collections.abc import Mapping
from typing import Any

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.images.references import is_digest

_LAYER_KINDS = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
)
_MOST_LAYERS = 1000
_MOST_WORDS = 10_000


class ImageRefused(EvenkeelError):
    """This runtime cannot use the image, or the archive is damaged."""


class Manifest(NamedTuple):
    """Which blobs make the image, by digest; the lowest layer first."""

    config: str
    layers: tuple[str, ...]


class ImageConfig(NamedTuple):
    """The image's defaults for its containers. The pod's manifest may replace them."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_directory: str = ""
    user: str = ""  # NAME or NUMBER, with or without :GROUP
    stop_signal: int = signal.SIGTERM


NO_CONFIG = ImageConfig()


def index_digest(text: bytes) -> str:
    """Returns the digest of the one manifest in the index of a layout. Raises ValueError."""
    manifests = _object(text, "index.json").get("manifests")
    if not isinstance(manifests, list) or len(manifests) != 1:
        raise ValueError("its index does not name one manifest")
    return _digest(manifests[0], "its manifest")


def manifest(text: bytes) -> Manifest:
    """Raises ValueError."""
    value = _object(text, "its manifest")
    layers = value.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise ValueError(f"its manifest has no list of at most {_MOST_LAYERS} layers")
    for layer in layers:
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        if not isinstance(kind, str) or not kind.startswith(_LAYER_KINDS):
            raise ValueError(
                f"it has a layer of the kind {str(kind)[:100]!r}, and is no image of a container"
            )
    return Manifest(
        _digest(value.get("config"), "its configuration"),
        tuple(_digest(layer, "a layer of it") for layer in layers),
    )


def image_config(text: bytes) -> ImageConfig:
    """Raises ValueError."""
    value = _object(text, "its configuration")
    config = value.get("config") or {}
    if not isinstance(config, dict):
        raise ValueError("its configuration has no object config")  # noqa: TRY004 the mistake is in the text
    variables = (one.partition("=") for one in _strings(config, "Env"))
    return ImageConfig(
        _strings(config, "Entrypoint"),
        _strings(config, "Cmd"),
        tuple((name, text) for name, _, text in variables if name),
        _string(config, "WorkingDir"),
        _string(config, "User"),
        _signal(_string(config, "StopSignal")),
    )


def config_from(value: Mapping[str, Any]) -> ImageConfig:
    """Reads the result of `_asdict`, after JSON. Raises KeyError, TypeError and ValueError."""
    return ImageConfig(
        tuple(map(str, value["entrypoint"])),
        tuple(map(str, value["command"])),
        tuple((str(name), str(text)) for name, text in value["env"]),
        str(value["working_directory"]),
        str(value["user"]),
        int(value["stop_signal"]),
    )


def _signal(text: str) -> int:
    """`SIGQUIT`, `QUIT` or `3`. Anything else is SIGTERM."""
    if text.isascii() and text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else signal.SIGTERM
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    return next((one.value for one in signal.Signals if one.name == name), signal.SIGTERM.value)


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004 the mistake is in the text
    return value


def _digest(descriptor: object, what: str) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not is_digest(digest):
        raise ValueError(f"{what} has no digest of sha256")
    return str(digest)


def _strings(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = value.get(key) or []
    if not isinstance(found, list) or len(found) > _MOST_WORDS:
        raise ValueError(f"{key} in its configuration is not a list")
    return tuple(_checked(one, key) for one in found)


def _string(value: Mapping[str, Any], key: str) -> str:
    return _checked(value.get(key) or "", key)


def _checked(text: object, key: str) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{key} in its configuration is not text")
    return text
