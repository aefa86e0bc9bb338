"""Probes: exactly one way to ask, and sensible times."""

from evenkeel.api.container import Container, HTTPGetAction, Probe
from evenkeel.api.validation.names import header_name, plain_text, port_name
from evenkeel.api.validation.problems import Problems, forbidden, invalid, not_supported, required, shown

_GREATEST_INT32 = 2**31 - 1
_HANDLERS = "exec, httpGet or tcpSocket"


def probes(container: Container, path: str, *, allowed: bool) -> Problems:
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        here = f"{path}.{name}"
        if not allowed:
            yield forbidden(here, "an init container has no probes unless its restartPolicy is Always")
            continue
        yield from _handler(probe, here)
        yield from _times(probe, here)
        if name != "readinessProbe" and probe.success_threshold != 1:
            yield invalid(f"{here}.successThreshold", f"{probe.success_threshold} must be 1 in a {name}")
        if name == "readinessProbe" and probe.termination_grace_period_seconds is not None:
            yield invalid(
                f"{here}.terminationGracePeriodSeconds",
                "a readiness probe ends nothing, so it has no grace period: leave it out",
            )


def _handler(probe: Probe, path: str) -> Problems:
    given = [
        name
        for name, handler in (
            ("exec", probe.exec),
            ("httpGet", probe.http_get),
            ("tcpSocket", probe.tcp_socket),
        )
        if handler is not None
    ]
    if not given:
        yield required(path, f"a probe needs one of {_HANDLERS} (grpc is not supported here)")
        return
    for extra in given[1:]:
        yield forbidden(f"{path}.{extra}", f"a probe has one handler, and {given[0]} is there already")
    if given[0] == "exec" and probe.exec is not None:
        if not probe.exec.command:
            yield required(f"{path}.exec.command", "write the command to run, as a list")
        for index, argument in enumerate(probe.exec.command):
            if plain_text(argument):
                yield invalid(f"{path}.exec.command[{index}]", f"{shown(argument)} {plain_text(argument)}")
    elif given[0] == "httpGet" and probe.http_get is not None:
        yield from _http_get(probe.http_get, f"{path}.httpGet")
    elif probe.tcp_socket is not None:
        yield from _port(probe.tcp_socket.port, f"{path}.tcpSocket.port")


def _http_get(action: HTTPGetAction, path: str) -> Problems:
    if not action.path:
        yield required(f"{path}.path", "write the path to ask for, such as /healthz")
    yield from _port(action.port, f"{path}.port")
    if action.scheme not in ("HTTP", "HTTPS"):
        yield not_supported(f"{path}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for header in action.http_headers:
        if header_name(header.name):
            yield invalid(f"{path}.httpHeaders", f"{shown(header.name)} {header_name(header.name)}")


def _port(port: int | str, path: str) -> Problems:
    if isinstance(port, str):
        if port_name(port):
            yield invalid(path, f"{shown(port)} {port_name(port)}, or a number from 1 to 65535")
    elif not 1 <= port <= 65535:
        yield invalid(path, f"{port} must be from 1 to 65535")


def _times(probe: Probe, path: str) -> Problems:
    for name, value in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        if not 0 <= value <= _GREATEST_INT32:
            yield invalid(f"{path}.{name}", f"{value} must be from 0 to {_GREATEST_INT32}")
    grace = probe.termination_grace_period_seconds
    if grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", f"{grace} must be 1 or more")
