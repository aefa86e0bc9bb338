"""Validation of pods, ConfigMaps and Secrets: the rules of Kubernetes for the fields that Evenkeel has, and what a node
needs beyond them.

No function here raises. Each problem is a value with the path of the field, Kubernetes' name for the kind of mistake,
and a sentence that says what was written and what to write instead (A3).
"""

from evenkeel.api.validation.data_rules import validate_data
from evenkeel.api.validation.pod_rules import validate_pod
from evenkeel.api.validation.pod_warnings import warnings
from evenkeel.api.validation.volume_rules import cluster_only_problems

__all__ = ["cluster_only_problems", "validate_data", "validate_pod", "warnings"]
