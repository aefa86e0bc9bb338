"""Helpers of several areas: reading a vector's pod, and comparing maps of quantities."""

from collections.abc import Mapping

from evenkeel.api.decode import Findings, decode
from evenkeel.api.pod import Pod
from evenkeel.quantity import Quantity


def read_pod(plain: dict) -> Pod:
    """A persisted pod of the vectors, taken as it is: no defaulting."""
    return decode(Pod, plain, Findings())


def differences(name: str, ours: object, theirs: object) -> list[str]:
    return [] if ours == theirs else [f"{name}: expected {theirs}, we say {ours}"]


def quantity_differences(
    name: str, ours: Mapping[str, Quantity], theirs: Mapping[str, dict] | None
) -> list[str]:
    """Numerically, as the vectors' description asks: how a sum is written depends on its first operand."""
    expected = {resource: int(amount["milli"]) for resource, amount in (theirs or {}).items()}
    return differences(name, {resource: amount.milli for resource, amount in ours.items()}, expected)
