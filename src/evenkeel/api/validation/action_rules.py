"""Rules for the actions of probes and hooks: a command in the container, or a request to it."""

from evenkeel.api.container import ExecAction, HTTPGetAction
from evenkeel.api.problems import Problems, invalid, not_supported, required, shown, unusable
from evenkeel.api.validation.name_rules import header_name, plain_text, port_name


def command_problems(action: ExecAction, path: str) -> Problems:
    if not action.command:
        yield required(f"{path}.command", "write the command to run, as a list")
    for index, argument in enumerate(action.command):
        if plain_text(argument):
            yield unusable(f"{path}.command[{index}]", f"{shown(argument)} {plain_text(argument)}")


def http_get_problems(action: HTTPGetAction, path: str) -> Problems:
    if not action.path:
        yield required(f"{path}.path", "write the path to ask for, such as /healthz")
    yield from port_problems(action.port, f"{path}.port")
    if action.scheme not in ("HTTP", "HTTPS"):
        yield not_supported(f"{path}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for header in action.http_headers:
        if header_name(header.name):
            yield invalid(f"{path}.httpHeaders", f"{shown(header.name)} {header_name(header.name)}")


def port_problems(port: int | str, path: str) -> Problems:
    if isinstance(port, str):
        if port_name(port):
            yield invalid(path, f"{shown(port)} {port_name(port)}, or a number from 1 to 65535")
    elif not 1 <= port <= 65535:
        yield invalid(path, f"{port} must be from 1 to 65535")
