"""Pods, snapshots, thresholds and settings of evictions, for tests of properties."""

from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.policy.eviction.decide import Settings
from evenkeel.policy.eviction.rank import Order
from evenkeel.policy.eviction.snapshot import MemoryFigures, NodeFigures, Snapshot
from evenkeel.policy.eviction.thresholds import Signal, Threshold, ThresholdValue
from evenkeel.quantity import Quantity
from tests.eviction_pods import CRITICAL, MI, burstable, filesystem, guaranteed, seen

requests = st.one_of(st.none(), st.integers(1, 4000))
figures = st.one_of(st.none(), st.integers(0, 4000))


@st.composite
def pods_seen(draw, name):
    memory = draw(figures)
    request = draw(requests)
    common = {
        "priority": draw(st.sampled_from([None, 0, 0, 5, -3, CRITICAL])),
        "created": draw(st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z"])),
        "rootfs": draw(figures),
        "logs": draw(figures),
        "processes": draw(figures),
        "volumes": draw(st.sampled_from([None, {"data": 100}, {"host": 3000}])),
        "measured": draw(st.booleans()) or draw(st.booleans()),
    }
    if request is None:
        return seen(name, memory, **common)
    kind = draw(st.sampled_from([burstable, guaranteed, None]))
    if kind is guaranteed and memory is not None:
        memory = min(memory, request)  # its request is its limit, and the kernel holds that
    if kind is not None:
        return kind(name, memory, request, **common)
    return seen(name, memory, requests={"ephemeral_storage": f"{request}Mi"}, **common)


@st.composite
def nodes_full_of_pods(draw):
    count = draw(st.integers(0, 6))
    return [draw(pods_seen(f"pod{number}")) for number in range(count)]


amounts_left = st.integers(0, 2000)
thresholds_strategy = st.lists(
    st.builds(
        Threshold,
        st.sampled_from(Signal),
        st.one_of(
            st.builds(ThresholdValue, st.integers(1, 10**10).map(Quantity.of)),
            st.builds(ThresholdValue, st.none(), st.sampled_from([0.05, 0.5, float("nan")])),
        ),
        st.sampled_from([0.0, 0.0, 15.0]),
        st.one_of(st.none(), st.builds(ThresholdValue, st.none(), st.just(0.1))),
    ),
    max_size=4,
).map(tuple)


@st.composite
def snapshots(draw, time=0.0):
    figures = NodeFigures(
        memory=draw(st.one_of(st.none(), st.just(MemoryFigures()), st.builds(memory, amounts_left))),
        pods_cgroup_memory=draw(st.one_of(st.none(), st.builds(memory, amounts_left))),
        nodefs=draw(st.one_of(st.none(), st.builds(filesystem, amounts_left, st.just(4000)))),
        imagefs=draw(st.one_of(st.none(), st.builds(filesystem, amounts_left, st.just(4000)))),
        dedicated_imagefs=draw(st.booleans()),
        separate_containerfs=draw(st.booleans()),
    )
    return Snapshot(time, figures, tuple(draw(nodes_full_of_pods())))


def memory(available):
    return MemoryFigures(available * MI, (4000 - available) * MI)


settings_strategy = st.builds(
    Settings,
    st.sampled_from(Profile),
    st.sampled_from(Order),
    st.sampled_from([-1, 0, 20]),
    st.just(30.0),
    st.booleans(),
)
