"""ConfigMaps and Secrets as text, for `get` and `describe`. Only `-o json` and `-o yaml` show a Secret's values."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenkeel.cli.client import SECRETS, AgentRefused, Client
from evenkeel.cli.output import NONE, STRUCTURED, Table, age_of, print_structured, printable

Json = dict[str, Any]


def show_data(client: Client, kind: str, names: Sequence[str], namespace: str, form: str | None) -> int:
    """Prints the objects of `get`. Returns the exit code. An empty namespace stands for all of them."""
    if names:
        found, failures = _found(client, kind, names, namespace)
    else:
        found, failures = client.data_objects(kind, namespace), []
    word = kind.removesuffix("s")
    if form in STRUCTURED:
        if len(names) == 1 and found:
            print_structured(found[0], form)
        elif not failures:
            print_structured({"apiVersion": "v1", "kind": "List", "items": found}, form)
    elif form == "name":
        print("".join(f"{word}/{one['metadata']['name']}\n" for one in found), end="")
    else:
        heads = ["NAME", *(["TYPE"] if kind == SECRETS else []), "DATA", "AGE"]
        has_namespace = not namespace
        Table(["NAMESPACE", *heads] if has_namespace else heads).print_rows(
            [_row(one, kind, has_namespace=has_namespace) for one in found]
        )
        if not found and not failures:
            print(f"no {kind}{f' in namespace {namespace}' if namespace else ''}", file=sys.stderr)
    return _reported(failures)


def describe_data(client: Client, kind: str, names: Sequence[str], namespace: str) -> int:
    if not names:
        names = [one["metadata"]["name"] for one in client.data_objects(kind, namespace)]
    found, failures = _found(client, kind, names, namespace)
    for number, one in enumerate(found):
        print("\n\n" if number else "", end="")
        print("\n".join(_lines(one, is_secret=kind == SECRETS)))
    return _reported(failures)


def _found(client: Client, kind: str, names: Sequence[str], namespace: str) -> tuple[list[Json], list[str]]:
    found, failures = [], []
    for name in names:
        try:
            found.append(client.data_object(kind, namespace, name))
        except AgentRefused as refusal:
            failures.append(str(refusal))
    return found, failures


def _reported(failures: Sequence[str]) -> int:
    for message in failures:
        print(f"evenkeel: {message}", file=sys.stderr)
    return int(bool(failures))


def _row(one: Json, kind: str, *, has_namespace: bool) -> list[str]:
    meta = one["metadata"]
    count = len(one.get("data", {})) + len(one.get("binaryData", {}))
    row = [meta["name"], *([one.get("type", "")] if kind == SECRETS else []), str(count)]
    row.append(age_of(meta.get("creationTimestamp")))
    return [meta.get("namespace", "default"), *row] if has_namespace else row


def _lines(one: Json, *, is_secret: bool) -> Iterator[str]:
    meta = one["metadata"]
    yield f"Name:         {meta['name']}"
    yield f"Namespace:    {meta.get('namespace', 'default')}"
    yield f"Labels:       {_pairs(meta.get('labels', {}))}"
    yield f"Annotations:  {_pairs(meta.get('annotations', {}))}"
    if is_secret:
        yield f"Type:         {one.get('type', '')}"
    if one.get("immutable"):
        yield "Immutable:    true"
    yield "Data:"
    for key, value in one.get("data", {}).items():
        if is_secret:
            yield f"  {key}:  {_decoded_bytes(value)} bytes"
        else:
            yield f"  {key}:"
            yield from (f"    {printable(line)}" for line in value.splitlines())
    for key, value in one.get("binaryData", {}).items():
        yield f"  {key}:  {_decoded_bytes(value)} bytes"


def _decoded_bytes(text: str) -> int:
    """The length of the content of a base64 text."""
    return len(text) // 4 * 3 - text[-2:].count("=")


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items()) or NONE
