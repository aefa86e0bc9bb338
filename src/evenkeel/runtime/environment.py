"""What a container finds in its environment, and `$(NAME)` in env, command and args, as in Kubernetes."""

import re
from collections.abc import Mapping, Sequence

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.runtime.downward import value_of

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# $$ is a $; $(NAME) a reference; what else follows a $ stays as it is, a $( without an end too.
_DOLLAR = re.compile(r"\$(?:(\$)|\(([^)]*)\)|(.))", re.DOTALL)


def expanded(text: str, known: Mapping[str, str]) -> str:
    """`text` with every `$(NAME)` that is known replaced by its value; one that is not stays as it is written."""
    if "$" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        dollar, name, _ = match.groups()
        if dollar:
            return "$"
        return known.get(name, match[0]) if name is not None else match[0]

    return _DOLLAR.sub(replacement, text)


def environment(pod: Pod, container: Container, hostname: str) -> dict[str, str]:
    """Nothing of the agent's own. A variable may refer to those above it."""
    return {"PATH": PATH, "HOSTNAME": hostname, **declared(pod, container)}


def declared(pod: Pod, container: Container) -> dict[str, str]:
    """Raises NoValue."""
    env: dict[str, str] = {}
    for variable in container.env:
        if variable.value_from is not None:
            env[variable.name] = value_of(variable.value_from, pod, container)
        else:
            env[variable.name] = expanded(variable.value, env)
    return env


def arguments(pod: Pod, container: Container) -> tuple[str, ...]:
    """The program and its arguments. An image here has no entrypoint of its own: the command is the container's."""
    known = declared(pod, container)
    return _expanded_all(container.command, known) + _expanded_all(container.args, known)


def _expanded_all(words: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(expanded(word, known) for word in words)
