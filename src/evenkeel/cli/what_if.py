"""Thresholds and settings of a decision, with those on the command line in place of the ones it was made with."""

import argparse
from collections.abc import Sequence

from evenkeel.cli.config_flags import config_from, given_fields
from evenkeel.policy.eviction.decide import Settings, settings_from
from evenkeel.policy.eviction.thresholds import (
    Threshold,
    config_graces_seconds,
    config_reclaims,
    config_thresholds,
)

_HARD, _SOFT, _RECLAIM = "eviction_hard", "eviction_soft", "eviction_minimum_reclaim"
_GRACE = "eviction_soft_grace_period"
_SETTINGS = {
    "profile": ("profile", "order"),
    "eviction_order": ("order",),
    "eviction_max_pod_grace_period": ("max_pod_grace_period_seconds",),
    "eviction_pressure_transition_period": ("pressure_transition_period_seconds",),
    "local_storage_capacity_isolation": ("local_storage_capacity_isolation",),
}
FLAGS = (*_SETTINGS, _HARD, _SOFT, _RECLAIM, _GRACE, "merge_default_eviction_settings")


class WhatIf:
    """What the command line changes; nothing, if no flag is given that a decision about evictions reads."""

    def __init__(self, args: argparse.Namespace) -> None:
        given = given_fields(args)
        is_whole = getattr(args, "config", None) is not None  # a file says everything
        config = config_from(args)
        self._settings = settings_from(config)
        self._fields = {
            field for flag, fields in _SETTINGS.items() if is_whole or flag in given for field in fields
        }
        self._thresholds = config_thresholds(config)
        self._has_hard = is_whole or _HARD in given or "merge_default_eviction_settings" in given
        self._has_soft = is_whole or _SOFT in given
        self._reclaims = config_reclaims(config) if is_whole or _RECLAIM in given else None
        self._graces_seconds = config_graces_seconds(config) if _GRACE in given else {}

    @property
    def changes_thresholds(self) -> bool:
        return self._has_hard or self._has_soft or self._reclaims is not None or bool(self._graces_seconds)

    @property
    def changes_anything(self) -> bool:
        return self.changes_thresholds or bool(self._fields)

    def settings(self, before: Settings) -> Settings:
        return before._replace(**{field: getattr(self._settings, field) for field in self._fields})

    def thresholds(self, before: Sequence[Threshold]) -> tuple[Threshold, ...]:
        hard = self._thresholds if self._has_hard else before
        reclaims = self._reclaims
        if reclaims is None:  # a threshold of another height leaves as it was how much more is to be freed
            reclaims = {one.signal: one.min_reclaim for one in before if one.min_reclaim is not None}
        if self._has_soft:
            soft = [one for one in self._thresholds if not one.hard]
        else:
            soft = [one._replace(grace_period_seconds=self._grace_of(one)) for one in before if not one.hard]
        found = (*(one for one in hard if one.hard), *soft)
        return tuple(one._replace(min_reclaim=reclaims.get(one.signal)) for one in found)

    def _grace_of(self, one: Threshold) -> float:
        return self._graces_seconds.get(one.signal, one.grace_period_seconds)
