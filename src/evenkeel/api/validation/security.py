"""Users and groups: numbers that the kernel takes."""

from evenkeel.api.container import SecurityContext
from evenkeel.api.pod import PodSecurityContext
from evenkeel.api.validation.problems import Problems, invalid

_GREATEST_ID = 2**31 - 1


def user_and_group(context: SecurityContext | PodSecurityContext, path: str) -> Problems:
    yield from _identity(context.run_as_user, f"{path}.runAsUser")
    yield from _identity(context.run_as_group, f"{path}.runAsGroup")


def pod_security(context: PodSecurityContext, path: str) -> Problems:
    yield from user_and_group(context, path)
    yield from _identity(context.fs_group, f"{path}.fsGroup")
    for index, group in enumerate(context.supplemental_groups):
        yield from _identity(group, f"{path}.supplementalGroups[{index}]")


def _identity(number: int | None, path: str) -> Problems:
    if number is not None and not 0 <= number <= _GREATEST_ID:
        yield invalid(path, f"{number} must be from 0 to {_GREATEST_ID}")
