"""What a valid pod is: Kubernetes' rules for the fields we have, and what a node needs beyond them.

Nothing here raises: each problem is a value with the field's path, Kubernetes' own name for the kind of
mistake, and a sentence that says what was seen and what to write instead (A3).
"""

from evenkeel.api.validation.pod_rules import validate_pod, warnings

__all__ = ["validate_pod", "warnings"]
