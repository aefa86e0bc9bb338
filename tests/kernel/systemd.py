"""Slices for tests under systemd, made and stopped over D-Bus with systemd's own busctl."""

import subprocess
from collections.abc import Mapping

MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


def start_slice(name: str, properties: Mapping[str, tuple[str, str]]) -> None:
    """Make the transient slice `name`; a property is its D-Bus signature and its value."""
    set_up = [part for key, (signature, value) in properties.items() for part in (key, signature, value)]
    call("StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", str(len(properties)), *set_up, "0")


def stop_unit(name: str) -> None:
    """Stop `name`, and with a slice all that is in it."""
    call("StopUnit", "ss", name, "replace")


def call(method: str, signature: str, *arguments: str) -> str:
    """Call a method of systemd's manager; its answer as busctl prints it."""
    command = ["busctl", "call", "--system", *MANAGER, method, signature, *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, f"{method}({', '.join(arguments)}): {result.stderr.strip()}"
    return result.stdout.strip()
