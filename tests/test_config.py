import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import (
    DEFAULT_EVICTION_HARD,
    CrashLoopBackOffConfig,
    KubeletConfiguration,
    Profile,
    defaulted,
)
from evenkeel.api.config_file import read_config
from evenkeel.api.config_start_rules import start_problems
from evenkeel.api.config_validation import config_warnings, validate_config
from evenkeel.api.scalars import Duration, format_cpuset, parse_cpuset
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.policy.allocatable import startup_problems

KUBEADM = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
healthzPort: 10248
logging:
  flushFrequency: 0
  verbosity: 0
memorySwap: {}
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
kubeReserved:
  cpu: 500m
  memory: 1Gi
"""


def problems_of(cgroup_version=None, **fields):
    config = KubeletConfiguration(**fields)
    found = [*validate_config(config, cgroup_version), *start_problems(config)]
    return {problem.field: problem.message for problem in found}


def mistakes_in(text):
    with pytest.raises(InvalidInput) as caught:
        read_config(text, "node.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_a_kubelets_own_file_is_accepted_with_one_warning_for_what_has_no_effect():
    file = read_config(KUBEADM, "node.yaml")
    assert file.config.cgroup_driver == "systemd"
    assert file.config.kube_reserved == {"cpu": "500m", "memory": "1Gi"}
    (warning,) = file.warnings
    assert str(warning).startswith("node.yaml:4: authentication.anonymous: not honoured here")
    assert file.config.authentication.x509.client_ca_file == "/etc/kubernetes/pki/ca.crt"
    assert "staticPodPath" in warning.message
    assert "kubeReserved" not in warning.message
    assert list(validate_config(file.config)) == []
    assert list(startup_problems(file.config)) == []


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "{}"])
def test_an_empty_file_sets_nothing(text):
    assert read_config(text, "node.yaml").config == KubeletConfiguration()


def test_every_field_can_be_set_in_a_file_under_its_own_name():
    fields = {
        "fairCPUSharing": True,
        "cpuBurst": 50,
        "cpuKills": True,
        "cpuKillsWindow": "30s",
        "evictionOrder": "priority",
        "profile": "kubernetes",
        "createReservedCgroups": True,
        "reservedProtectOnly": True,
        "handsOff": ["/custom.slice"],
        "memoryHighStall": "kill",
        "oomRetries": 5,
        "oomGroupKill": False,
        "experimentalNodeAllocatableIgnoreEvictionThreshold": True,
        "reservedSystemCPUs": "0-1",
        "cgroupsPerQOS": True,
        "cpuCFSQuotaPeriod": "10ms",
        "memorySwap": {"swapBehavior": "LimitedSwap"},
        "singleProcessOOMKill": True,
        "memoryThrottlingFactor": 0.9,
    }
    file = read_config(json.dumps(fields), "node.json")
    assert file.warnings == ()
    assert file.config.fair_cpu_sharing
    assert file.config.cpu_kills_window == Duration.parse("30s")
    assert file.config.hands_off == ("/custom.slice",)
    assert file.config.cpu_cfs_quota_period == Duration.parse("10ms")
    assert file.config.rulebook is Profile.KUBERNETES
    assert list(validate_config(file.config)) == []


def test_every_mistake_in_a_files_shape_is_reported_with_its_line():
    found = mistakes_in("maxPods: many\nevictionHarD: {}\nkubeReserved:\n  cpu: 1\ncpuKillsWindow: 5\n")
    assert [line.split(":")[1] for line in found] == ["1", "2", "4", "5"]
    assert "did you mean evictionHard?" in found[1]
    assert 'put it in quotes, "1"' in found[2]


@pytest.mark.parametrize(
    "text, words",
    [
        ("kind: Pod\nspec: {}", "node.yaml:1: kind: must be KubeletConfiguration"),
        ("apiVersion: v1", "apiVersion: must be kubelet.config.k8s.io/v1beta1"),
        ("maxPods: 1\n---\nmaxPods: 2", "node.yaml:2: a second document"),
        ("- a", "must be a mapping"),
        ("maxPods: [", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text, words):
    (mistake,) = mistakes_in(text)
    assert words in mistake


def test_the_documents_profile_throttles_and_ranks_by_class_by_default():
    config = defaulted(KubeletConfiguration())
    assert config.memory_throttling_factor == 0.8
    assert config.eviction_order == "class"
    assert config.eviction_hard == DEFAULT_EVICTION_HARD
    assert config.enforce_node_allocatable == ("pods",)
    assert config.oom_group_kill is True


def test_the_kubernetes_profile_throttles_nothing_and_ranks_by_priority_by_default():
    config = defaulted(KubeletConfiguration(profile="kubernetes"))
    assert config.memory_throttling_factor is None
    assert config.eviction_order == "priority"
    assert config.max_pods == 110


@pytest.mark.req("B4")
def test_an_empty_list_of_enforcements_is_not_the_same_as_none_written():
    assert read_config("enforceNodeAllocatable: []", "f").config.enforce_node_allocatable == ()
    assert read_config("enforceNodeAllocatable: null", "f").config.enforce_node_allocatable == ("pods",)


@pytest.mark.req("B16")
def test_some_hard_thresholds_replace_the_defaults_unless_they_are_merged():
    config = KubeletConfiguration(eviction_hard={"memory.available": "1Gi"})
    assert defaulted(config).eviction_hard == {"memory.available": "1Gi"}
    merged = defaulted(config._replace(merge_default_eviction_settings=True)).eviction_hard
    assert merged == {**DEFAULT_EVICTION_HARD, "memory.available": "1Gi"}


@pytest.mark.parametrize("single, whole", [(True, False), (False, True), (None, True)])
def test_killing_single_processes_is_the_opposite_of_killing_whole_containers(single, whole):
    assert defaulted(KubeletConfiguration(single_process_oom_kill=single)).oom_group_kill is whole


@given(
    st.sampled_from(["documents", "kubernetes", "", "other"]), st.none() | st.just({"pid.available": "5%"})
)
def test_defaulting_twice_is_the_same_as_once(profile, hard):
    once = defaulted(KubeletConfiguration(profile=profile, eviction_hard=hard, max_pods=0, pod_pids_limit=-7))
    assert defaulted(once) == once


def test_the_default_configuration_has_no_problem():
    for profile in Profile:
        assert problems_of(profile=profile) == {}
        assert list(startup_problems(KubeletConfiguration(profile=profile))) == []


@pytest.mark.req("B4", "B5")
@pytest.mark.parametrize(
    "key, field, flag",
    [
        ("kube-reserved", "kubeReservedCgroup", "--kube-reserved-cgroup"),
        ("system-reserved", "systemReservedCgroup", "--system-reserved-cgroup"),
        ("kube-reserved-compressible", "kubeReservedCgroup", "--kube-reserved-cgroup"),
        ("system-reserved-compressible", "systemReservedCgroup", "--system-reserved-cgroup"),
    ],
)
def test_enforcing_a_reservation_without_its_cgroup_names_both_flags(key, field, flag):
    message = problems_of(enforce_node_allocatable=("pods", key))[f"enforceNodeAllocatable, {field}"]
    assert "--enforce-node-allocatable holds" in message
    assert f"{flag}=/" in message


@pytest.mark.req("B4", "B6")
@pytest.mark.parametrize("key", ["pods", "kube-reserved"])
def test_enforcing_anything_without_cgroups_per_qos_names_both_flags(key):
    found = problems_of(
        cgroups_per_qos=False, enforce_node_allocatable=(key,), kube_reserved_cgroup="/kube.slice"
    )
    message = found["enforceNodeAllocatable, cgroupsPerQOS"]
    assert "--cgroups-per-qos" in message
    assert '--enforce-node-allocatable=""' in message


@pytest.mark.req("B4", "B6")
@pytest.mark.parametrize("keys", [(), ("none",)])
def test_without_cgroups_per_qos_enforcing_nothing_is_right(keys):
    assert problems_of(cgroups_per_qos=False, enforce_node_allocatable=keys) == {}


@pytest.mark.req("B4")
@pytest.mark.parametrize(
    "keys, words",
    [
        (("pods", "pods"), "twice"),
        (("pods", "none"), "none beside other words"),
        (("pod",), "did you mean pods?"),
        (("",), "must be pods or"),
        (
            ("kube-reserved", "kube-reserved-compressible"),
            "both kube-reserved and kube-reserved-compressible",
        ),
        (("system-reserved", "system-reserved-compressible"), "both system-reserved and"),
    ],
)
def test_a_list_of_enforcements_that_contradicts_itself_is_refused(keys, words):
    found = problems_of(
        enforce_node_allocatable=keys, kube_reserved_cgroup="/kube", system_reserved_cgroup="/sys"
    )
    assert words in found["enforceNodeAllocatable"]


@pytest.mark.req("B5")
@pytest.mark.parametrize(
    "path, words",
    [
        ("kube.slice", "not a name of systemd"),
        ("system.slice:docker:abc", "write /system.slice"),
        ("kube", "write /kube"),
        ("/kube/../other", "without . and .."),
        ("/kube//x", "without //"),
        ("/kube slice", "not ' '"),
        ("/kube\n", r"not '\n'"),
    ],
)
def test_a_reserved_cgroup_is_a_plain_absolute_path(path, words):
    for attribute, field in (
        ("kube_reserved_cgroup", "kubeReservedCgroup"),
        ("system_reserved_cgroup", "systemReservedCgroup"),
    ):
        assert words in problems_of(**{attribute: path})[field]


@pytest.mark.req("B5")
@pytest.mark.parametrize("path", ["/kube.slice", "/system.slice/kubelet.service", "/podruntime"])
def test_the_paths_of_the_document_are_taken(path):
    assert problems_of(kube_reserved_cgroup=path, enforce_node_allocatable=("pods", "kube-reserved")) == {}


@pytest.mark.req("B5")
@pytest.mark.parametrize("path", ["/", "/evenkeel", "/evenkeel/kubepods", "/evenkeel/kubepods/burstable"])
def test_a_reserved_cgroup_and_the_pods_cgroup_lie_beside_each_other(path):
    message = problems_of(system_reserved_cgroup=path)["systemReservedCgroup, cgroupRoot"]
    assert "--system-reserved-cgroup" in message
    assert "--cgroup-root" in message


@pytest.mark.req("B5")
def test_two_reservations_need_two_cgroups():
    found = problems_of(kube_reserved_cgroup="/a", system_reserved_cgroup="/a/")
    assert "kubeReservedCgroup, systemReservedCgroup" in found


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"profile": "k8s"}, "profile"),
        ({"cgroup_driver": "Systemd"}, "cgroupDriver"),
        ({"cpu_manager_policy": "dynamic"}, "cpuManagerPolicy"),
        ({"memory_reservation_policy": "Foo"}, "memoryReservationPolicy"),
        ({"memory_high_stall": "ignore"}, "memoryHighStall"),
        ({"eviction_order": "age"}, "evictionOrder"),
        ({"max_pods": -1}, "maxPods"),
        ({"pods_per_core": -1}, "podsPerCore"),
        ({"oom_score_adj": 1001}, "oomScoreAdj"),
        ({"cpu_burst": 101}, "cpuBurst"),
        ({"oom_retries": -1}, "oomRetries"),
        ({"cpu_kills_window": Duration(5)}, "cpuKillsWindow"),
        ({"container_log_max_files": 1}, "containerLogMaxFiles"),
        ({"container_log_max_size": "big"}, "containerLogMaxSize"),
        ({"container_log_max_size": "0"}, "containerLogMaxSize"),
        ({"cpu_cfs_quota_period": Duration.parse("2s")}, "cpuCFSQuotaPeriod"),
        ({"reserved_system_cpus": "0-"}, "reservedSystemCPUs"),
        ({"memory_throttling_factor": 0.0}, "memoryThrottlingFactor"),
        ({"memory_throttling_factor": float("nan")}, "memoryThrottlingFactor"),
        ({"cgroup_root": "evenkeel"}, "cgroupRoot"),
        ({"hands_off": ("a",)}, "handsOff"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_field_and_flag(fields, field):
    (attribute,) = fields
    flag = "--reserved-cpus" if field == "reservedSystemCPUs" else "--" + attribute.replace("_", "-")
    found = problems_of(**fields)
    assert set(found) == {field}
    assert found[field].startswith(f"{flag} ")


def test_a_word_that_was_almost_right_is_answered_with_the_right_one():
    assert "did you mean systemd?" in problems_of(cgroup_driver="sytemd")["cgroupDriver"]


def test_whole_cpus_kept_back_exclude_reserved_cgroups():
    found = problems_of(reserved_system_cpus="0", system_reserved_cgroup="/system.slice")
    (message,) = found.values()
    assert "--reserved-cpus" in message
    assert "--system-reserved-cgroup" in message


def test_swap_behaviour_is_a_word_and_needs_its_gate():
    swap = KubeletConfiguration().memory_swap
    assert problems_of(memory_swap=swap._replace(swap_behavior="LimitedSwap")) == {}
    assert set(problems_of(memory_swap=swap._replace(swap_behavior="Much"))) == {"memorySwap.swapBehavior"}
    gated = problems_of(memory_swap=swap._replace(swap_behavior="NoSwap"), feature_gates={"NodeSwap": False})
    assert "NodeSwap" in gated["memorySwap.swapBehavior"]


def test_switching_memory_qos_off_leaves_our_factor_alone_and_refuses_kubelets():
    gates = {"MemoryQoS": False}
    assert problems_of(memory_throttling_factor=0.5, feature_gates=gates) == {}
    refused = problems_of(memory_throttling_factor=0.5, feature_gates=gates, profile="kubernetes")
    assert set(refused) == {"memoryThrottlingFactor"}


def test_two_names_of_one_switch_must_not_contradict_each_other():
    assert problems_of(single_process_oom_kill=True, oom_group_kill=False) == {}
    assert set(problems_of(single_process_oom_kill=True, oom_group_kill=True)) == {
        "singleProcessOOMKill, oomGroupKill"
    }


def test_settings_that_cgroup_v1_lacks_are_refused_there():
    fields = {"fail_cgroup_v1": True, "single_process_oom_kill": False}
    assert problems_of(cgroup_version=2, **fields) == {}
    assert set(problems_of(cgroup_version=1, **fields)) == {"failCgroupV1", "singleProcessOOMKill"}


def test_a_gate_that_changes_nothing_is_a_warning_with_the_gate_that_was_meant():
    gates = {"MemoryQos": True, "GracefulNodeShutdown": True, "NodeSwap": True, "AllBeta": True}
    found = {
        warning.field: warning.message
        for warning in config_warnings(KubeletConfiguration(feature_gates=gates))
    }
    assert set(found) == {"featureGates[MemoryQos]", "featureGates[GracefulNodeShutdown]"}
    assert "did you mean MemoryQoS?" in found["featureGates[MemoryQos]"]


@pytest.mark.parametrize(
    "gates, on",
    [
        ({}, True),
        ({"MemoryQoS": False}, False),
        ({"AllBeta": False}, False),
        ({"AllBeta": False, "MemoryQoS": True}, True),
        ({"AllAlpha": False}, True),
    ],
)
def test_a_gate_is_as_set_then_as_its_stage_then_as_by_default(gates, on):
    assert KubeletConfiguration(feature_gates=gates).feature("MemoryQoS") is on


def test_problems_that_kubelet_finds_only_at_its_start_are_no_fault_of_its_file():
    """Kubelet reads these as plain text and stumbles over them later; so they count as start-up problems."""
    config = KubeletConfiguration(
        profile="kubernetes",
        cgroup_driver="chroot",
        cpu_manager_policy="greedy",
        container_log_max_size="much",
        kube_reserved_cgroup="kube.slice",
        system_reserved_cgroup="/a//b",
    )
    assert list(validate_config(config)) == []
    assert {problem.field for problem in startup_problems(config)} == {
        "cgroupDriver",
        "cpuManagerPolicy",
        "containerLogMaxSize",
        "kubeReservedCgroup",
        "systemReservedCgroup",
    }


@pytest.mark.parametrize("gate", ["NodeSwap", "DisableCPUQuotaWithExclusiveCPUs"])
def test_a_gate_that_kubelet_has_locked_is_locked_in_its_profile(gate):
    gates = {gate: False}
    assert set(problems_of(feature_gates=gates, profile="kubernetes")) == {f"featureGates[{gate}]"}
    assert problems_of(feature_gates=gates) == {}
    assert problems_of(feature_gates={gate: True}, profile="kubernetes") == {}


@pytest.mark.parametrize(
    "period, gates, is_good",
    [
        ("1s", {}, True),
        ("5m", {}, True),
        ("300.0009s", {}, True),  # kubelet counts whole milliseconds
        ("300.001s", {}, False),
        ("999ms", {}, False),
        ("10s", {"KubeletCrashLoopBackOffMax": False}, False),
        ("10s", {"AllBeta": False}, False),
    ],
)
def test_the_longest_wait_before_a_restart_has_bounds_and_a_gate(period, gates, is_good):
    wait = CrashLoopBackOffConfig(Duration.parse(period))
    found = problems_of(crash_loop_back_off=wait, feature_gates=gates)
    assert set(found) == (set() if is_good else {"crashLoopBackOff.maxContainerRestartPeriod"})


def test_kubelet_takes_a_negative_transition_period_for_none():
    period = Duration.parse("-1s")
    assert problems_of(eviction_pressure_transition_period=period, profile="kubernetes") == {}
    assert set(problems_of(eviction_pressure_transition_period=period)) == {
        "evictionPressureTransitionPeriod"
    }


@pytest.mark.parametrize("text, is_good", [("+1", True), ("0-9000", True), (" 0", False), ("0-1-2", False)])
def test_kubelets_own_spelling_of_cpus_is_what_its_file_may_hold(text, is_good):
    config = KubeletConfiguration(reserved_system_cpus=text)
    assert [problem.field for problem in validate_config(config)] == (
        [] if is_good else ["reservedSystemCPUs"]
    )


def test_a_threshold_of_minus_nothing_is_nothing():
    config = KubeletConfiguration(eviction_hard={"memory.available": "-0%"})
    assert list(startup_problems(config)) == []


@pytest.mark.req("B3", "B16")
def test_amounts_that_cannot_be_read_are_found_before_the_agent_starts():
    config = KubeletConfiguration(
        eviction_hard={"memory.available": "lots"},
        kube_reserved={"cpu": "-1"},
        system_reserved={"gpu": "1"},
        qos_reserved={"memory": "150%"},
    )
    assert {problem.field for problem in startup_problems(config)} == {
        "evictionHard[memory.available]",
        "kubeReserved[cpu]",
        "systemReserved[gpu]",
        "qosReserved[memory]",
    }


def test_kubelets_static_policy_needs_a_cpu_kept_back():
    config = KubeletConfiguration(cpu_manager_policy="static", profile="kubernetes")
    (problem,) = startup_problems(config)
    assert "--reserved-cpus" in problem.message
    assert list(startup_problems(config._replace(reserved_system_cpus="0"))) == []


@given(st.sets(st.integers(0, 300), max_size=40))
def test_a_cpu_set_survives_being_printed_and_read(cpus):
    assert set(parse_cpuset(format_cpuset(cpus))) == cpus


@pytest.mark.parametrize("text", ["0-", "-1", "3-1", "a", "0,,1", "0-99999999999", "9000", "²", "1 2"])
def test_a_text_that_is_no_cpu_set_is_refused(text):
    with pytest.raises(EvenkeelError, match="0-3,8"):
        parse_cpuset(text)


@given(
    st.dictionaries(
        st.sampled_from(
            ["maxPods", "evictionHard", "kubeReserved", "featureGates", "handsOff", "cpuBurst", "x"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_no_document_whatsoever_is_answered_with_anything_but_sentences(document):
    try:
        config = read_config(json.dumps(document), "f").config
    except EvenkeelError as error:
        found = [str(error)]
    else:
        found = [str(problem) for problem in (*validate_config(config), *startup_problems(config))]
    assert all(found)


def test_settings_for_images_have_kubelets_rules():
    assert "must be less than" in next(iter(problems_of(image_gc_low_threshold_percent=85).values()))
    assert set(problems_of(image_gc_high_threshold_percent=101)) == {"imageGCHighThresholdPercent"}
    assert set(problems_of(registry_pull_qps=-1)) == {"registryPullQPS"}
    assert set(problems_of(max_parallel_image_pulls=0)) == {"maxParallelImagePulls"}
    assert "--serialize-image-pulls=false" in next(iter(problems_of(max_parallel_image_pulls=2).values()))
    assert problems_of(max_parallel_image_pulls=2, serialize_image_pulls=False) == {}
    assert "must be longer than" in next(iter(problems_of(image_maximum_gc_age=Duration(1)).values()))
    assert "imagePullCredentialsVerificationPolicy" in problems_of(
        image_pull_credentials_verification_policy="AlwaysVerify"
    )
