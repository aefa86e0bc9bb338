"""Which pods may use an image that is on this machine: kubelet's imagePullCredentialsVerificationPolicy. Pure.

An image that a pod pulled with a password of its own is for pods with a password that the registry has accepted for it.
Otherwise a pod could run another one's private images by their name. An image that the machine could pull for
everybody, or that was put there by hand, is for all.
"""

import secrets

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.images.credentials import Credential


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
