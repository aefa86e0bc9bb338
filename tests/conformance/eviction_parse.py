"""The `fn=parse` vectors of area `eviction`: what ParseThresholdConfig makes of the four settings."""

from math import isclose, isfinite
from typing import Any

from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.thresholds import Threshold, ThresholdValue, parse_thresholds


def check_parse(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    try:
        thresholds = parse_thresholds(
            hard=vector_input["evictionHard"],
            soft=vector_input["evictionSoft"],
            soft_grace_period=vector_input["evictionSoftGracePeriod"],
            minimum_reclaim=vector_input["evictionMinimumReclaim"],
            enforce_node_allocatable=tuple(vector_input["enforceNodeAllocatable"] or ()),
        )
    except EvenkeelError as error:
        return [f"refused: {error}"] if expected["ok"] else []
    if not expected["ok"]:
        return [f"should be refused, is {[str(threshold) for threshold in thresholds]}"]
    ours = sorted(thresholds, key=lambda one: (one.signal, one.hard, one.grace_period_seconds))
    theirs = expected["thresholds"]
    if len(ours) != len(theirs):
        return [f"{len(ours)} thresholds, should be {len(theirs)}"]
    return [words for mine, other in zip(ours, theirs, strict=True) for words in _differences(mine, other)]


def _differences(ours: Threshold, theirs: dict[str, Any]) -> list[str]:
    words = []
    if ours.signal != theirs["signal"] or ours.hard != theirs["hard"]:
        words.append(f"{ours.signal} hard={ours.hard}, should be {theirs['signal']} hard={theirs['hard']}")
    if not isclose(ours.grace_period_seconds, theirs["gracePeriodSeconds"], rel_tol=1e-15):
        words.append(
            f"{ours.signal}: {ours.grace_period_seconds} s, should be {theirs['gracePeriodSeconds']}"
        )
    if not _same(ours.value, theirs["value"]):
        words.append(f"{ours.signal}: {ours.value!r}, should be {theirs['value']}")
    if not _same(ours.min_reclaim, theirs.get("minReclaim")):
        words.append(f"{ours.signal}: reclaims {ours.min_reclaim!r}, should be {theirs.get('minReclaim')}")
    return words


def _same(ours: ThresholdValue | None, theirs: dict[str, Any] | None) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if "quantity" in theirs:
        return ours.quantity is not None and ours.quantity.value == theirs["value"]
    percentage = ours.percentage if isfinite(ours.percentage) else None
    return ours.quantity is None and percentage == theirs["percentage"]
