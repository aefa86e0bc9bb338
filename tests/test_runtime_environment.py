"""What a container finds in its environment: as in Kubernetes, and nothing of the agent's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.container import Container, EnvVar
from evenkeel.runtime.environment import arguments, environment, expanded


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$", "$"),
        ("$", "$"),
        ("end$", "end$"),
        ("$(A", "$(A"),
        ("$A", "$A"),
        ("$()", "$()"),
        ("$($(A))", "$($(A))"),
        ("$(A)\n$(B)", "1\n2"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text, result):
    assert expanded(text, {"A": "1", "B": "2"}) == result


@given(st.text(alphabet="$()AB x", max_size=20))
def test_expanding_without_variables_changes_only_doubled_dollars(text):
    assert expanded(text, {}).count("(") == text.count("(")
    if "$$" not in text:
        assert expanded(text, {}) == text


def test_a_variable_refers_to_those_above_it_and_not_to_those_below():
    container = Container(
        env=(EnvVar("A", "1"), EnvVar("B", "$(A)$(C)"), EnvVar("C", "3"), EnvVar("A", "$(A)0"))
    )
    env = environment(container, "host-of-it")
    assert env["B"] == "1$(C)"
    assert env["A"] == "10"


def test_the_environment_is_the_pods_own(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    assert environment(Container(), "web-0") == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOSTNAME": "web-0",
    }


def test_the_pod_may_set_what_there_is_by_default():
    env = environment(Container(env=(EnvVar("PATH", "/opt/bin"), EnvVar("HOSTNAME", "x"))), "web-0")
    assert env == {"PATH": "/opt/bin", "HOSTNAME": "x"}


def test_command_and_args_are_expanded_with_declared_variables_only():
    container = Container(
        command=("echo", "$(A)"), args=("$(HOSTNAME)", "$$(A)"), env=(EnvVar("A", "one two"),)
    )
    assert arguments(container) == ("echo", "one two", "$(HOSTNAME)", "$(A)")
