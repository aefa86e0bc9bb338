"""PersistentVolumeClaims: directories of this node that outlive pods.

A claim gets an empty directory below the agent's state directory, whatever its class. Its data stays until the claim
itself is deleted. A claim that asks for particular storage, such as a volume by name or a copy of another, is refused.
"""

from collections.abc import Iterator

from evenkeel.api.pod import ObjectMeta
from evenkeel.api.resources import STORAGE
from evenkeel.api.volume_types import PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import Quantity

CLAIM = "PersistentVolumeClaim"


class PersistentVolumeClaim(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()

    @property
    def size(self) -> Quantity | None:
        return self.spec.resources.requests.get(STORAGE)


def claim_notes(claim: PersistentVolumeClaim) -> Iterator[tuple[str, str]]:
    """Differences from a cluster: pairs of a field and a sentence."""
    if claim.size is not None:
        words = f"{claim.size} is not enforced: the claim may take all the room of its disk"
        yield "spec.resources.requests.storage", words


def claim_name(volume: Volume) -> str:
    """The name of the claim that a volume has; empty if it has none."""
    return volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim is not None else ""


def claim_volume(volume: str, claim: str) -> Volume:
    return Volume(volume, persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim))
