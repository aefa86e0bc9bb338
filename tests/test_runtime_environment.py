"""The environment of a container: the variables of Kubernetes, and none of the agent's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.container import (
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretEnvSource,
    SecretKeySelector,
)
from evenkeel.api.data_objects import CONFIG_MAP, NODE_AMOUNTS, SECRET, DataObject, NodeAmounts
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.resources import ResourceRequirements
from evenkeel.quantity import Quantity
from evenkeel.runtime.environment import (
    arguments,
    declared,
    environment,
    expanded,
    missing_data,
    problems,
    value_of,
    wants_addresses,
    with_addresses,
)
from evenkeel.runtime.start_errors import NotYet

AMOUNTS = ResourceRequirements(limits={"memory": Quantity("64Mi"), "cpu": Quantity("1500m")})
POD = Pod(
    ObjectMeta(
        "web",
        namespace="shop",
        uid="u-1",
        labels={"app.example/x": "y"},
        annotations={"a": "b", "nul": "x\0y"},
    ),
    PodSpec(containers=(Container("app", resources=AMOUNTS), Container("other")), node_name="here"),
)


def from_field(path):
    return EnvVarSource(field_ref=ObjectFieldSelector(path))


def from_amount(resource, container="app", divisor=None):
    return EnvVarSource(resource_field_ref=ResourceFieldSelector(resource, container, divisor))


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
    env = environment(POD, container, "host-of-it")
    assert env["B"] == "1$(C)"
    assert env["A"] == "10"


def test_the_environment_is_the_pods_own(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    assert environment(POD, Container(), "web-0") == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOSTNAME": "web-0",
    }


def test_the_pod_may_set_what_there_is_by_default():
    env = environment(POD, Container(env=(EnvVar("PATH", "/opt/bin"), EnvVar("HOSTNAME", "x"))), "web-0")
    assert env == {"PATH": "/opt/bin", "HOSTNAME": "x"}


def test_command_and_args_are_expanded_with_declared_variables_only():
    container = Container(
        command=("echo", "$(A)"), args=("$(HOSTNAME)", "$$(A)"), env=(EnvVar("A", "one two"),)
    )
    assert arguments(POD, container) == ("echo", "one two", "$(HOSTNAME)", "$(A)")


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (from_field("metadata.name"), "web"),
        (from_field("metadata.namespace"), "shop"),
        (from_field("metadata.uid"), "u-1"),
        (from_field("metadata.labels['app.example/x']"), "y"),
        (from_field("metadata.labels['none']"), ""),
        (from_field("metadata.annotations['a']"), "b"),
        (from_field("spec.nodeName"), "here"),
        (from_amount("limits.memory"), str(64 << 20)),
        (from_amount("limits.memory", divisor=Quantity("1Mi")), "64"),
        (from_amount("limits.memory", divisor=Quantity("60Mi")), "2"),
        (from_amount("limits.cpu"), "2"),
        (from_amount("limits.cpu", divisor=Quantity("1m")), "1500"),
        (from_amount("limits.cpu", divisor=Quantity("0")), "2"),
        (from_amount("requests.cpu", "other"), "0"),
    ],
)
def test_a_variable_may_be_a_field_of_the_pod_or_an_amount(source, value):
    container = Container("main", command=("x", "$(A)"), env=(EnvVar("A", value_from=source),))
    assert not list(problems(POD, container))
    assert environment(POD, container, "web")["A"] == value
    assert arguments(POD, container) == ("x", value)


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", Quantity("1Mi"), "1000"),
        ("limits.cpu", None, "4"),
        ("limits.cpu", Quantity("1m"), "3500"),
        ("limits.ephemeral-storage", None, "0"),  # the node does not count it
        ("limits.hugepages-2Mi", None, "0"),  # never more than what was asked for
        ("requests.memory", None, "0"),
    ],
)
def test_a_limit_that_is_not_set_is_what_the_node_can_give(resource, divisor, value):
    node = NodeAmounts({"memory": Quantity("1000Mi"), "cpu": Quantity("3500m")})
    source = from_amount(resource, "other", divisor)
    assert value_of(source, POD, Container(), {NODE_AMOUNTS: node}) == value
    assert not list(problems(POD, Container("main", env=(EnvVar("A", value_from=source),))))


def test_a_limit_of_the_pod_is_the_limit_of_a_container_without_one():
    shared = POD._replace(
        spec=POD.spec._replace(resources=ResourceRequirements(limits={"memory": Quantity("1Gi")}))
    )
    assert value_of(from_amount("limits.memory", "other", Quantity("1Mi")), shared, Container()) == "1024"


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (EnvVarSource(), "this source is not supported here"),
        (from_field("status.phase"), 'fieldPath "status.phase" is not supported here'),
        (from_field("metadata.annotations['nul']"), "holds a NUL character"),
        (from_amount("limits.memory", "none"), 'the pod has no container "none"'),
        (from_amount("memory"), "neither limits.NAME nor requests.NAME"),
    ],
)
def test_a_variable_that_cannot_be_had_is_refused_and_not_left_empty(source, reported):
    container = Container("main", env=(EnvVar("A", "1"), EnvVar("B", value_from=source)))
    (problem,) = problems(POD, container)
    assert problem.startswith("env[1].valueFrom: ")
    assert reported in problem


DATA = {
    (CONFIG_MAP, "app"): DataObject(
        CONFIG_MAP,
        ObjectMeta("app"),
        {"MODE": b"fast", "a b": b"odd", "x=y": b"no", "RAW": b"\xff"},
        frozenset({"RAW"}),
    ),
    (SECRET, "db"): DataObject(SECRET, ObjectMeta("db"), {"password": b"hunter2", "bin": b"\xff\0"}),
}


def from_key(kind: str, name: str, key: str, *, optional: bool | None = None) -> EnvVarSource:
    if kind == CONFIG_MAP:
        return EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name, key, optional))
    return EnvVarSource(secret_key_ref=SecretKeySelector(name, key, optional))


def variables(*env: EnvVar, env_from: tuple[EnvFromSource, ...] = (), data=DATA) -> dict[str, str]:
    return declared(POD, Container("app", env=env, env_from=env_from), data)


def test_a_variable_takes_the_value_of_a_key():
    env = variables(
        EnvVar("MODE", value_from=from_key(CONFIG_MAP, "app", "MODE")),
        EnvVar("PASSWORD", value_from=from_key(SECRET, "db", "password")),
        EnvVar("URL", "db://me:$(PASSWORD)@here"),
    )
    assert env == {"MODE": "fast", "PASSWORD": "hunter2", "URL": "db://me:hunter2@here"}


def test_env_from_takes_every_key_that_can_name_a_variable_and_env_comes_after_it():
    env = variables(
        EnvVar("APP_MODE", "slow"),
        EnvVar("SAID", "$(APP_MODE) $(DB_password)"),
        env_from=(
            EnvFromSource("APP_", ConfigMapEnvSource("app")),
            EnvFromSource("DB_", secret_ref=SecretEnvSource("other", optional=True)),
        ),
    )
    assert env == {"APP_MODE": "slow", "APP_a b": "odd", "SAID": "slow $(DB_password)"}


def test_an_optional_value_that_is_missing_is_left_out():
    assert variables(
        EnvVar("A", value_from=from_key(SECRET, "none", "x", optional=True)),
        EnvVar("B", value_from=from_key(SECRET, "db", "none", optional=True)),
        EnvVar("C", "$(A)"),
    ) == {"C": "$(A)"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (from_key(SECRET, "none", "x"), 'Secret "none" is not there in namespace shop'),
        (from_key(CONFIG_MAP, "app", "none"), 'ConfigMap "app" has no key "none"'),
        (from_key(CONFIG_MAP, "app", "RAW"), "binaryData"),
        (from_key(SECRET, "db", "bin"), "is not text"),
    ],
)
def test_a_missing_value_is_what_the_container_waits_for(source, message):
    container = Container("app", env=(EnvVar("A", value_from=source),))
    assert message in missing_data(POD, container, DATA)
    assert not list(problems(POD, container)), "it may come later"
    assert "\xff" not in missing_data(POD, container, DATA)


def test_a_container_without_references_waits_for_nothing():
    assert missing_data(POD, Container("app", env=(EnvVar("A", "1"),)), {}) == ""


def test_addresses_are_known_when_the_container_starts():
    names = ("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs")
    container = Container("app", env=tuple(EnvVar(name, value_from=from_field(name)) for name in names))
    assert wants_addresses(container)
    assert not list(problems(POD, container))
    with pytest.raises(NotYet):
        declared(POD, container)
    own = with_addresses(POD, "10.0.0.1", ("10.88.0.2", "fd00::2"))
    assert [*declared(own, container).values()] == ["10.88.0.2", "10.88.0.2,fd00::2", "10.0.0.1", "10.0.0.1"]
    assert declared(with_addresses(POD, "10.0.0.1", None), container)["status.podIP"] == "10.0.0.1"
    with pytest.raises(NotYet):
        declared(with_addresses(POD, "10.0.0.1", ()), container)


def test_the_name_of_the_account_is_a_value():
    container = Container("app", env=(EnvVar("A", value_from=from_field("spec.serviceAccountName")),))
    assert declared(POD, container) == {"A": "default"}
    named = POD._replace(spec=POD.spec._replace(service_account_name="me"))
    assert declared(named, container) == {"A": "me"}
