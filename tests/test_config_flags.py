import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration, flag_of
from evenkeel.api.scalars import Duration
from evenkeel.cli.config_flags import add_config_flags, config_from, given_config
from evenkeel.errors import EvenkeelError


def parsed(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_config_flags(parser)
    return parser.parse_args(arguments)


def config_of(*arguments):
    return config_from(parsed(*arguments))


def refusal_of(*arguments):
    with pytest.raises(EvenkeelError) as caught:
        config_of(*arguments)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(
        "kind: KubeletConfiguration\n"
        "maxPods: 20\n"
        "kubeReserved: {cpu: 100m}\n"
        "featureGates: {MemoryQoS: false, NodeSwap: true}\n"
    )
    return str(path)


def test_every_field_has_a_flag():
    known = vars(parsed())
    assert {f"config_{attribute}" for attribute in KubeletConfiguration._fields} == set(known) - {"config"}


@pytest.mark.req("B3", "B4", "B5", "B6", "B7")
def test_the_documents_flags_are_understood():
    config = config_of(
        "--kube-reserved=cpu=500m,memory=5Mi",
        "--system-reserved=memory=1Gi",
        "--enforce-node-allocatable=pods,kube-reserved,system-reserved",
        "--kube-reserved-cgroup=/kube.slice",
        "--system-reserved-cgroup=/system.slice",
        "--cgroups-per-qos=true",
        "--experimental-node-allocatable-ignore-eviction-threshold",
    )
    assert config.kube_reserved == {"cpu": "500m", "memory": "5Mi"}
    assert config.system_reserved == {"memory": "1Gi"}
    assert config.enforce_node_allocatable == ("pods", "kube-reserved", "system-reserved")
    assert config.kube_reserved_cgroup == "/kube.slice"
    assert config.cgroups_per_qos
    assert config.experimental_node_allocatable_ignore_eviction_threshold


@pytest.mark.req("B4", "B6")
def test_enforcement_is_switched_off_with_an_empty_text():
    config = config_of("--enforce-node-allocatable=", "--cgroups-per-qos=false")
    assert config.enforce_node_allocatable == ()


@pytest.mark.req("B16")
def test_eviction_flags_are_understood():
    config = config_of(
        "--eviction-hard=memory.available<100Mi,nodefs.available<10%",
        "--eviction-soft=memory.available<300Mi",
        "--eviction-soft-grace-period=memory.available=1m30s",
        "--eviction-minimum-reclaim=memory.available=5%",
        "--eviction-pressure-transition-period=30s",
    )
    assert config.eviction_hard == {"memory.available": "100Mi", "nodefs.available": "10%"}
    assert config.eviction_soft_grace_period == {"memory.available": "1m30s"}
    assert config.eviction_minimum_reclaim == {"memory.available": "5%"}
    assert config.eviction_pressure_transition_period == Duration.parse("30s")


def test_flags_override_the_file_and_leave_the_rest_of_it(file):
    config = config_of("--config", file, "--max-pods=30", "--feature-gates=MemoryQoS=true")
    assert config.max_pods == 30
    assert config.kube_reserved == {"cpu": "100m"}
    assert config.feature_gates == {"MemoryQoS": True, "NodeSwap": True}
    assert config.cgroup_root == "/evenkeel"


def test_without_any_flag_the_defaults_hold():
    assert config_of().memory_throttling_factor == 0.8


def test_what_a_flag_cannot_mean_is_reported_all_at_once_by_flag():
    lines = refusal_of(
        "--max-pods=many",
        "--cgroups-per-qos=maybe",
        "--kube-reserved=cpu",
        "--feature-gates=MemoryQoS=perhaps",
        "--memory-throttling-factor=most",
        "--cpu-cfs-quota-period=5",
        "--eviction-hard=memory.available=5%",
    ).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "--cgroups-per-qos",
        "--cpu-cfs-quota-period",
        "--eviction-hard",
        "--feature-gates",
        "--kube-reserved",
        "--max-pods",
        "--memory-throttling-factor",
    ]


@pytest.mark.req("B4")
def test_an_invalid_combination_of_flags_is_refused_by_both_names():
    refusal = refusal_of("--enforce-node-allocatable=pods,system-reserved")
    assert "--enforce-node-allocatable" in refusal
    assert "--system-reserved-cgroup" in refusal


@pytest.mark.req("B3")
def test_a_reservation_that_is_no_amount_is_refused_by_its_flag():
    assert "--system-reserved" in refusal_of("--system-reserved=memory=1GB")


def test_a_mistake_in_the_file_is_reported_with_its_line_unless_a_flag_made_it(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text("profile: documents\nmaxPods: -1\n")
    assert refusal_of("--config", str(path)).startswith(f"{path}:2: maxPods: --max-pods must")
    assert refusal_of("--config", str(path), "--max-pods=-2").startswith("maxPods: --max-pods must")


def test_mistakes_in_file_and_flags_are_reported_together(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text("maxPod: 1\n")
    first, second = refusal_of("--config", str(path), "--cpu-burst=x").splitlines()
    assert "did you mean maxPods?" in first
    assert second.startswith("--cpu-burst: ")


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    assert "cannot read" in refusal_of("--config", str(tmp_path / "none.yaml"))


def test_warnings_come_with_the_configuration_and_go_to_standard_error(tmp_path, capsys):
    path = tmp_path / "node.yaml"
    path.write_text("clusterDomain: cluster.local\nfeatureGates: {MemoryQos: true}\n")
    given_warnings = given_config(parsed("--config", str(path))).warnings
    assert [warning.line for warning in given_warnings] == [1, 2]
    config_of("--config", str(path))
    assert capsys.readouterr().err.count("warning: ") == 2


@given(st.sampled_from(KubeletConfiguration._fields), st.text(max_size=12))
def test_no_flags_text_is_answered_with_anything_but_a_sentence(attribute, text):
    arguments = parsed()
    setattr(arguments, f"config_{attribute}", text)
    try:
        config = given_config(arguments).config
    except EvenkeelError as error:
        assert flag_of(attribute) in str(error)  # noqa: PT017
    else:
        assert isinstance(config, KubeletConfiguration)
