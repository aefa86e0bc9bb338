"""The seccomp profiles that pods may name (seccompProfile Localhost): JSON files in a directory of the operator.

Their format is that of the OCI runtime specification, which kubelet's runtimes read. libseccomp compiles a profile when
a container starts. A profile with parts that are not understood is refused: a container without them would be less
confined than the author of the profile wants.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.seccomp import ALLOW, ERRNO, Comparison, Filter, FilterBuilder

_MOST_BYTES = 1 << 20
_EPERM = 1
_ACTIONS = {
    "SCMP_ACT_KILL": 0x0000_0000,
    "SCMP_ACT_KILL_THREAD": 0x0000_0000,
    "SCMP_ACT_KILL_PROCESS": 0x8000_0000,
    "SCMP_ACT_TRAP": 0x0003_0000,
    "SCMP_ACT_ERRNO": ERRNO,
    "SCMP_ACT_TRACE": 0x7FF0_0000,
    "SCMP_ACT_LOG": 0x7FFC_0000,
    "SCMP_ACT_ALLOW": ALLOW,
}
_WITH_NUMBER = ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
_OPERATORS = {
    "SCMP_CMP_NE": 1,
    "SCMP_CMP_LT": 2,
    "SCMP_CMP_LE": 3,
    "SCMP_CMP_EQ": 4,
    "SCMP_CMP_GE": 5,
    "SCMP_CMP_GT": 6,
    "SCMP_CMP_MASKED_EQ": 7,
}
_OF_PROFILE = frozenset(("defaultAction", "defaultErrnoRet", "architectures", "syscalls", "flags"))
_OF_RULE = frozenset(("names", "action", "errnoRet", "args", "comment"))
_FLAGS = ("SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC")
_ARCHITECTURE = "SCMP_ARCH_"


class BadProfile(EvenkeelError):
    """The profile is missing, or is not a profile."""


def localhost_filter(root: str, name: str) -> Filter:
    """Reads and compiles a profile. `name` is its path below `root`. Raises BadProfile and NoFilter."""
    try:
        return _compiled(json.loads(_content(root, name)))
    except OSError as error:
        raise BadProfile(
            f"seccomp profile {name!r} cannot be read below {root}: {reason(error)}",
            hint="put it there, or name another directory with --seccomp-profile-root",
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadProfile(f"seccomp profile {name!r} is not JSON of a profile: {error}") from None
    except BadProfile as error:
        raise BadProfile(f"seccomp profile {name!r}: {error.message}") from None


def _content(root: str, name: str) -> bytes:
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK
        file = syscalls.open_within(directory, name, flags, syscalls.RESOLVE_BENEATH)
    finally:
        os.close(directory)
    try:
        return os.read(file, _MOST_BYTES)
    finally:
        os.close(file)


def _compiled(profile: Mapping[str, Any]) -> Filter:
    _known(profile, _OF_PROFILE, "profile")
    for flag in profile.get("flags") or ():
        if flag not in _FLAGS:
            raise BadProfile(f"flag {str(flag)[:60]} is not known")
    default = _action(profile.get("defaultAction"), profile.get("defaultErrnoRet"))
    with FilterBuilder(default) as builder:
        for architecture in profile.get("architectures") or ():
            builder.add_architecture(str(architecture).removeprefix(_ARCHITECTURE).lower())
        for rule in profile.get("syscalls") or ():
            _known(rule, _OF_RULE, "rule")
            action = _action(rule.get("action"), rule.get("errnoRet"))
            if action == default:
                continue  # libseccomp takes no rule that changes nothing
            for name in rule["names"]:
                for comparisons in _alternatives(rule.get("args") or ()):
                    builder.add(action, str(name), *comparisons)
        return builder.compiled()


def _known(part: object, fields: frozenset[str], what: str) -> None:
    if not isinstance(part, dict):
        raise BadProfile(f"a {what} is not a JSON object")
    # An empty field asks for nothing.
    other = [name for name, value in part.items() if name not in fields and value]
    if other:
        raise BadProfile(
            f"a {what} has {other[0][:60]!r}, which is not in the OCI format or has no effect here"
        )
    if what == "rule" and not isinstance(part.get("names"), list):
        raise BadProfile("a rule has no names of system calls")


def _action(name: object, number: object) -> int:
    action = _ACTIONS.get(str(name))
    if action is None:
        raise BadProfile(f"action {str(name)[:60]} is not one of {', '.join(_ACTIONS)}")
    if name not in _WITH_NUMBER:
        return action
    given = _EPERM if number is None else number
    if not isinstance(given, int) or not 0 <= given < 1 << 16:
        raise BadProfile(f"errnoRet {str(given)[:60]} must be from 0 to 65535")
    return action | given


def _alternatives(arguments: Sequence[Mapping[str, Any]]) -> list[list[Comparison]]:
    """As in runc: conditions on different arguments must all hold; if two are on the same argument, any of them is
    enough."""
    comparisons = [
        Comparison(
            int(one["index"]), _OPERATORS[one["op"]], int(one.get("value", 0)), int(one.get("valueTwo", 0))
        )
        for one in arguments
        if _is_condition(one)
    ]
    if len({one.argument for one in comparisons}) < len(comparisons):
        return [[one] for one in comparisons]
    return [comparisons]


def _is_condition(argument: object) -> bool:
    if not isinstance(argument, dict) or argument.get("op") not in _OPERATORS or "index" not in argument:
        raise BadProfile(f"a condition must have an index and one of {', '.join(_OPERATORS)} as op")
    return True
