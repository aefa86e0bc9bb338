"""Answers of a container runtime, changed at random: whole messages, and the JSON that some of them carry."""

import random
from typing import Any

from google.protobuf.message import DecodeError

from evenkeel.runtime.cri import cri_pb2 as pb
from tests.fuzz.mutation import mutated

_INFO = b"""{"pid": 4194303, "sandboxID": "s", "runtimeSpec": {"linux": {"cgroupsPath": "/kubepods/podu-1/c"}},
 "config": {"metadata": {"name": "main"}}}"""
_CONFIG = b"""{"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"SystemdCgroup": true}}}},
 "sandboxImage": "pause:3", "restrictOOMScoreAdj": false, "systemdCgroup": false}"""
_WORDS = (
    "",
    "main",
    "u-1",
    "/",
    "..",
    "../..",
    "a" * 300,
    "\u2028",
    "-1",
    "\x00",
    "RuntimeReady",
    "OOMKilled",
)
_NUMBERS = (0, 1, -1, 127, 128, 137, 192, 193, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_STEPS = (1, 1, 2, 4)


def changed(answer: Any, seed: int) -> bytes:
    """The bytes of the answer with a few changes. They may be no message any more."""
    return mutated([answer.SerializeToString()], seed)


def readable(answer: Any, seed: int) -> Any:
    """The answer with changes that leave it a message: of bytes, or of fields."""
    chance = random.Random(seed)
    if chance.random() < 0.5:
        try:
            return type(answer).FromString(changed(answer, seed))
        except DecodeError:
            pass
    copy = type(answer)()
    copy.CopyFrom(answer)
    for _ in range(chance.choice(_STEPS)):
        _change_field(copy, chance)
    return copy


def _change_field(message: Any, chance: random.Random) -> None:
    if not message.DESCRIPTOR.fields:
        return
    field = chance.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value[chance.choice(("info", "config", "", *value))] = _text(chance)
    elif field.is_repeated:
        _change_list(value, chance)
    elif field.message_type is not None:
        if chance.random() < 0.2:
            message.ClearField(field.name)
        else:
            _change_field(value, chance)
    elif field.cpp_type == field.CPPTYPE_STRING:
        setattr(message, field.name, _text(chance) if field.type == field.TYPE_STRING else b"\xff\0" * 3000)
    elif field.cpp_type == field.CPPTYPE_BOOL:
        setattr(message, field.name, not value)
    else:
        _set_number(message, field.name, chance)


def _change_list(value: Any, chance: random.Random) -> None:
    if not len(value):
        return
    kind = chance.randrange(3)
    if kind == 0:
        del value[chance.randrange(len(value))]
    elif kind == 1:
        value.append(value[chance.randrange(len(value))])
    elif hasattr(value[0], "DESCRIPTOR"):
        _change_field(value[chance.randrange(len(value))], chance)


def _set_number(message: Any, name: str, chance: random.Random) -> None:
    for _ in range(8):
        try:
            setattr(message, name, chance.choice(_NUMBERS))
        except ValueError:  # the field is narrower
            continue
        return


def _text(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return chance.choice(_WORDS)
    return mutated([_INFO, _CONFIG], chance.randrange(1 << 30)).decode("utf-8", "replace")


def answers() -> dict[type, Any]:
    """One good answer of each kind that is read."""
    labels = {
        "io.evenkeel.state": "/var/lib/evenkeel", "io.kubernetes.pod.uid": "u-1",
        "io.kubernetes.container.name": "main", "io.evenkeel.attempt": "1",
    }  # fmt: skip
    info = {"info": _INFO.decode()}
    status = pb.ContainerStatus(
        id="c", state=pb.ContainerState.CONTAINER_EXITED, started_at=10**18, finished_at=10**18 + 5, exit_code=3,
        reason="Error", message="m", labels=labels, annotations={"a": "b"}, log_path="/nowhere/1.log",
    )  # fmt: skip
    container = pb.Container(
        id="c", pod_sandbox_id="s", state=pb.ContainerState.CONTAINER_RUNNING, labels=labels
    )
    sandbox = pb.PodSandbox(
        id="s", state=pb.PodSandboxState.SANDBOX_READY, labels=labels,
        metadata=pb.PodSandboxMetadata(name="web", uid="u-1", namespace="default", attempt=1),
    )  # fmt: skip
    usage = pb.FilesystemUsage(
        fs_id=pb.FilesystemIdentifier(mountpoint="/"),
        used_bytes=pb.UInt64Value(value=7),
        inodes_used=pb.UInt64Value(value=3),
    )
    image = pb.Image(
        id="sha256:1", repo_tags=["a:1"], repo_digests=["a@sha256:1"], username="nobody", uid=pb.Int64Value(value=1)
    )  # fmt: skip
    ready = pb.RuntimeStatus(conditions=[pb.RuntimeCondition(type="RuntimeReady", status=True)])
    made = (
        pb.VersionResponse(runtime_name="containerd", runtime_version="1.7", runtime_api_version="v1"),
        pb.StatusResponse(status=ready, info={"config": _CONFIG.decode()}),
        pb.RuntimeConfigResponse(linux=pb.LinuxRuntimeConfiguration(cgroup_driver=pb.CgroupDriver.CGROUPFS)),
        pb.ImageFsInfoResponse(image_filesystems=[usage]),
        pb.ImageStatusResponse(image=image),
        pb.ListImagesResponse(images=[image]),
        pb.PullImageResponse(image_ref="sha256:1"),
        pb.RemoveImageResponse(),
        pb.ListContainersResponse(containers=[container, container]),
        pb.ListPodSandboxResponse(items=[sandbox]),
        pb.ContainerStatusResponse(status=status, info=info),
        pb.PodSandboxStatusResponse(status=pb.PodSandboxStatus(id="s", labels=labels), info=info),
        pb.StopPodSandboxResponse(),
        pb.RemovePodSandboxResponse(),
        pb.RemoveContainerResponse(),
    )
    return {type(one): one for one in made}
