"""Variables from files of emptyDir volumes (`fileKeyRef`). An init container writes such a file.

The format is kubelet's, a part of what a POSIX shell reads: `NAME='value'`, one after the other. The value is in single
quotes, is taken literally and may have many lines. Blank lines and comments are passed over. Pure: `env_file_reader`
reads the files.
"""

from collections.abc import Iterator

from evenkeel.api.container import Container, FileKeySelector
from evenkeel.api.data_objects import ENV_FILE, EnvFile, PodData
from evenkeel.runtime.start_errors import DataMissing, NotYet

_BLANKS = " \t"


def file_keys(container: Container) -> Iterator[FileKeySelector]:
    """Each key of a file that a variable of the container has its value from."""
    for variable in container.env:
        if variable.value_from is not None and variable.value_from.file_key_ref is not None:
            yield variable.value_from.file_key_ref


def file_name(selector: FileKeySelector) -> tuple[str, str]:
    """What names the file among the pod's data."""
    return ENV_FILE, f"{selector.volume_name}/{selector.path}"


def file_value(selector: FileKeySelector, data: PodData) -> str | None:
    """Returns the value of the key; None if it is optional and missing. Raises NotYet and DataMissing.

    As in kubelet an empty value counts as a missing one. A file that cannot be understood is never optional.
    """
    found = data.get(file_name(selector))
    if not isinstance(found, EnvFile):
        raise NotYet("the file is read when the container starts")
    where = f'file {selector.path} of volume "{selector.volume_name}"'
    if found.problem:
        raise DataMissing(f"{where} {found.problem}")
    value = "" if found.text is None else _value(found.text, selector.key, where)
    if value:
        return value
    if selector.optional:
        return None
    if found.text is None:
        raise DataMissing(f"{where} is not there: let an init container write it, or set optional: true")
    raise DataMissing(
        f"{where} has no value for key \"{selector.key}\": write {selector.key}='…' into it, or set optional: true"
    )


def _value(text: str, key: str, where: str) -> str:
    """Returns the first value of the key; empty if there is none. What follows it is not looked at."""
    lines = enumerate((line.removesuffix("\r") for line in text.split("\n")), 1)
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals or not name.rstrip(_BLANKS):
            raise _wrong(where, number, "must be NAME='value'")
        if name != name.rstrip(_BLANKS):
            raise _wrong(where, number, "must have no blank before the =")
        if rest[:1] in (" ", "\t"):
            value = ""  # as for a shell: the assignment ends here
        elif not rest.startswith("'"):
            raise _wrong(where, number, f"must have the value of {name} in single quotes")
        else:
            value = _quoted(rest[1:], number, lines, where)
        if name == key:
            return value
    return ""


def _quoted(rest: str, begin: int, lines: Iterator[tuple[int, str]], where: str) -> str:
    parts = []
    number = begin
    while "'" not in rest:
        parts.append(rest)
        number, rest = next(lines, (0, ""))
        if not number:
            raise _wrong(where, begin, "has a single quote that no other one closes")
    last, _, after = rest.partition("'")
    after = after.lstrip(_BLANKS)
    if after and not after.startswith("#"):
        raise _wrong(where, number, "must have nothing but a comment after the closing quote")
    return "\n".join((*parts, last))


def _wrong(where: str, number: int, what: str) -> DataMissing:
    return DataMissing(f"{where} cannot be understood: its line {number} {what}")
