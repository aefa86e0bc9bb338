"""Pods that the process runtime cannot honour are refused before anything is started."""

import pytest

from evenkeel.api.container import Container, SecurityContext, VolumeMount
from evenkeel.api.pod import ObjectMeta, Pod, PodSecurityContext, PodSpec
from evenkeel.api.volume_types import EmptyDirVolumeSource, Volume
from evenkeel.runtime.environment import groups, identity
from evenkeel.runtime.process.process_refusals import Powers, refusal, users_refusal

ROOT = Powers(0, 0)
USER = Powers(1000, 1000)


def pod(*containers: Container, **spec) -> Pod:
    return Pod(ObjectMeta(name="web", namespace="default", uid="u"), PodSpec(containers=containers, **spec))


PLAIN = Container(name="web", image="host", command=("sleep", "1"))


def why(*containers: Container, powers: Powers = ROOT, **spec) -> str:
    found = refusal(pod(*containers, **spec), powers)
    assert found is None or found.reason == "NotHonoured"
    return "" if found is None else found.message


def test_a_plain_pod_is_taken():
    assert why(PLAIN) == ""
    assert why(PLAIN, powers=USER) == ""


def test_a_container_without_a_command_is_refused_with_its_field():
    assert why(PLAIN, PLAIN._replace(command=(), args=("x",))).startswith(
        "spec.containers[1].command: missing"
    )
    assert why(PLAIN, init_containers=(PLAIN._replace(command=()),)).startswith(
        "spec.initContainers[0].command"
    )


@pytest.mark.parametrize(
    "image", ["nginx", "registry.example/pause:3.9", "registry.example:5000/library/busybox"]
)
def test_an_image_of_a_registry_may_have_a_program_of_its_own(image):
    assert why(PLAIN._replace(image=image, command=())) == ""


@pytest.mark.parametrize("propagation", ["HostToContainer", "Bidirectional"])
def test_a_process_sees_no_mounts_that_come_later_and_says_who_does(propagation):
    mounts = (
        VolumeMount("v", "/a", mount_propagation="None"),
        VolumeMount("v", "/b", mount_propagation=propagation),
    )
    volumes = (Volume("v", empty_dir=EmptyDirVolumeSource()),)
    reported = why(PLAIN._replace(volume_mounts=mounts), volumes=volumes)
    assert reported.startswith(
        f"spec.containers[0].volumeMounts[1].mountPropagation: {propagation} is not supported"
    )
    assert "--runtime-endpoint" in reported
    assert why(PLAIN._replace(volume_mounts=mounts[:1]), volumes=volumes) == ""


def test_only_root_gives_containers_another_user():
    as_user = PLAIN._replace(security_context=SecurityContext(run_as_user=1001))
    assert why(as_user) == ""
    assert "runAsUser 1001 is not 1000" in why(as_user, powers=USER)
    assert why(PLAIN._replace(security_context=SecurityContext(run_as_user=1000)), powers=USER) == ""
    assert "runAsGroup 5" in why(
        PLAIN._replace(security_context=SecurityContext(run_as_group=5)), powers=USER
    )
    assert "group 7" in why(PLAIN, powers=USER, security_context=PodSecurityContext(fs_group=7))


def test_without_namespaces_volumes_and_images_are_refused():
    powers = USER._replace(has_namespaces=False)
    assert why(PLAIN, powers=powers) == ""
    volume = Volume("data", empty_dir=EmptyDirVolumeSource())
    assert why(PLAIN, powers=powers, volumes=(volume,)).startswith("spec.volumes: ")
    assert why(PLAIN._replace(image="/srv/root"), powers=powers).startswith("spec.containers[0].image: ")


def test_the_containers_user_goes_before_the_pods():
    container = PLAIN._replace(security_context=SecurityContext(run_as_user=0, run_as_non_root=False))
    one = pod(container, security_context=PodSecurityContext(5, 6, run_as_non_root=True))
    assert identity(one, container) == (0, 6, False)
    assert identity(one, PLAIN) == (5, 6, True)


def test_a_container_that_must_not_be_root_is_not_started_as_root():
    careful = PLAIN._replace(security_context=SecurityContext(run_as_non_root=True))
    assert "without runAsUser it would be root" in users_refusal(pod(careful), careful, ROOT)
    zero = PLAIN._replace(security_context=SecurityContext(run_as_user=0, run_as_non_root=True))
    assert "runAsUser is 0" in users_refusal(pod(zero), zero, ROOT)
    other = PLAIN._replace(security_context=SecurityContext(run_as_user=7, run_as_non_root=True))
    assert users_refusal(pod(other), other, ROOT) == ""
    assert users_refusal(pod(careful), careful, USER) == ""


def test_groups_are_the_pods_and_that_of_its_volumes():
    context = PodSecurityContext(supplemental_groups=(3, 4), fs_group=9)
    assert groups(pod(PLAIN, security_context=context)) == (3, 4, 9)
    assert groups(pod(PLAIN)) == ()
