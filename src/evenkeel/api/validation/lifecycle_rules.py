"""Rules for lifecycle hooks, for the actions of hooks and probes, and for restart rules of containers."""

from evenkeel.api.container import (
    RESTART_ACTIONS,
    Container,
    ContainerRestartRule,
    ExecAction,
    HTTPGetAction,
    LifecycleHandler,
)
from evenkeel.api.problems import (
    Problems,
    forbidden,
    invalid,
    not_supported,
    required,
    shown,
    too_many,
    unusable,
)
from evenkeel.api.validation.name_rules import header_name, plain_text, port_name

_OPERATORS = ("In", "NotIn")
_MOST_RULES = 20
_MOST_CODES = 255


def hook_problems(container: Container, path: str, grace_seconds: int | None, *, allowed: bool) -> Problems:
    for name, handler in (("postStart", container.post_start), ("preStop", container.pre_stop)):
        if handler is None:
            continue
        here = f"{path}.lifecycle.{name}"
        if allowed:
            yield from _handler(handler, here, grace_seconds)
    if container.lifecycle is not None and not allowed:
        yield forbidden(
            f"{path}.lifecycle", "an init container has no hooks unless its restartPolicy is Always"
        )


def _handler(handler: LifecycleHandler, path: str, grace_seconds: int | None) -> Problems:
    given = [
        name
        for name, action in (
            ("exec", handler.exec),
            ("httpGet", handler.http_get),
            ("tcpSocket", handler.tcp_socket),
            ("sleep", handler.sleep),
        )
        if action is not None
    ]
    if not given:
        yield required(path, "a hook needs one of exec, httpGet or sleep")
    for extra in given[1:]:
        yield forbidden(f"{path}.{extra}", f"a hook has one handler, and {given[0]} is there already")
    if given[:1] == ["exec"] and handler.exec is not None:
        yield from command_problems(handler.exec, f"{path}.exec")
    elif given[:1] == ["httpGet"] and handler.http_get is not None:
        yield from http_get_problems(handler.http_get, f"{path}.httpGet")
    elif given[:1] == ["tcpSocket"] and handler.tcp_socket is not None:
        yield from port_problems(handler.tcp_socket.port, f"{path}.tcpSocket.port")
        yield unusable(
            f"{path}.tcpSocket",
            "a hook cannot open a connection, in Kubernetes neither: write exec or httpGet",
        )
    elif handler.sleep is not None:
        seconds = handler.sleep.seconds
        if grace_seconds is not None and not 0 <= seconds <= grace_seconds:
            yield invalid(
                f"{path}.sleep",
                f"{seconds} must be from 0 to terminationGracePeriodSeconds, which is {grace_seconds}",
            )


def restart_rule_problems(container: Container, path: str, *, is_init: bool) -> Problems:
    rules = container.restart_policy_rules
    if rules and container.restart_policy is None:
        yield required(
            f"{path}.restartPolicy", "restartPolicyRules need it: write Always, OnFailure or Never"
        )
        if is_init:
            return
    if len(rules) > _MOST_RULES:
        yield too_many(f"{path}.restartPolicyRules", len(rules), _MOST_RULES)
    for index, rule in enumerate(rules):
        yield from _rule(rule, f"{path}.restartPolicyRules[{index}]")


def _rule(rule: ContainerRestartRule, path: str) -> Problems:
    if rule.action not in RESTART_ACTIONS:
        yield not_supported(f"{path}.action", rule.action, RESTART_ACTIONS)
    codes = rule.exit_codes
    if codes is None:
        yield required(f"{path}.exitCodes", "name the exit codes after which the rule applies")
        return
    if codes.operator not in _OPERATORS:
        yield not_supported(f"{path}.exitCodes.operator", codes.operator, _OPERATORS)
    if len(codes.values) > _MOST_CODES:
        yield too_many(f"{path}.exitCodes.values", len(codes.values), _MOST_CODES)


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
