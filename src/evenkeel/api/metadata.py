"""The part every object has."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NO_LABELS: Mapping[str, str] = MappingProxyType({})


class ObjectMeta(NamedTuple):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = NO_LABELS
    annotations: Mapping[str, str] = NO_LABELS
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
