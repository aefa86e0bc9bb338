"""OCI layouts for tests, written blob by blob: layers of any compression, several platforms, any configuration."""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.machines.container_images import Entry, layer_of

NOTHING: Mapping[str, Any] = {}
_LAYER, _CONFIG = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_gzipped = partial(gzip.compress, mtime=0)  # the same bytes in every second


class Layout:
    """A layout at `directory` that skopeo reads as `oci:DIRECTORY:NAME`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "blobs/sha256").mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._named: list[dict[str, Any]] = []

    def image(
        self,
        layers: Sequence[Sequence[Entry]],
        config: Mapping[str, Any] = NOTHING,
        *,
        architecture: str = "amd64",
        compress: Callable[[bytes], bytes] = _gzipped,
        kind: str = "+gzip",
        has_parents: bool = True,
    ) -> dict[str, Any]:
        """The descriptor of an image. `config` is what a container gets: Entrypoint, Env, User and the like."""
        tars = [layer_of(entries, has_parents=has_parents) for entries in layers]
        about = {
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(tar)}" for tar in tars]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self.blob(json.dumps(about).encode(), _CONFIG),
            "layers": [self.blob(compress(tar), _LAYER + kind) for tar in tars],
        }
        found = self.blob(json.dumps(manifest).encode(), _MANIFEST)
        return found | {"platform": {"architecture": architecture, "os": "linux"}}

    def index(self, images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The descriptor of an image of several platforms."""
        value = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": list(images)}
        return self.blob(json.dumps(value).encode(), _INDEX)

    def named(self, name: str, image: Mapping[str, Any]) -> str:
        """Gives an image a name, and returns how skopeo calls it."""
        annotations = {"org.opencontainers.image.ref.name": name}
        self._named.append({**image, "annotations": annotations})
        value = {"schemaVersion": 2, "manifests": self._named}
        (self.directory / "index.json").write_text(json.dumps(value))
        return f"oci:{self.directory}:{name}"

    def blob(self, content: bytes, kind: str) -> dict[str, Any]:
        digest = _digest(content)
        (self.directory / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
