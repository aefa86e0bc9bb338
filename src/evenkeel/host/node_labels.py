"""The labels that this machine has as a node, as kubelet writes them."""

import os
from collections.abc import Mapping

from evenkeel.api.node_affinity import ARCH, HOSTNAME, SYSTEM

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def architecture() -> str:
    """In Kubernetes' words."""
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def own_labels(name: str = "", others: Mapping[str, str] | None = None) -> dict[str, str]:
    """The labels of the node of that name, with others that its operator has written. Without a name it is that of the
    machine."""
    found = architecture()
    return {
        HOSTNAME: name or os.uname().nodename.lower(),
        SYSTEM: "linux",
        ARCH: found,
        f"beta.{SYSTEM}": "linux",
        f"beta.{ARCH}": found,
        **(others or {}),
    }
