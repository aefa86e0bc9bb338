"""Manifests that several tests apply."""

from evenkeel.api.claims import PersistentVolumeClaim
from evenkeel.api.pod import ObjectMeta
from evenkeel.api.volume_types import PersistentVolumeClaimSpec, VolumeResourceRequirements
from evenkeel.quantity import Quantity

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    image: host
    command: [sleep, "60"]
    resources:
      requests: {memory: 64Mi}
  volumes:
  - name: scratch
    emptyDir: {}
"""
PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    image: host
    command: [sleep, "60"]
    resources: {requests: {memory: 64Mi, cpu: 100m}, limits: {memory: 128Mi, cpu: 200m}}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec:
  containers: [{name: job, image: host, command: [sleep, "60"]}]
"""
SMALL_POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: web}
spec:
  containers:
  - name: c
    image: host
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {memory: 64Mi}}
"""


def a_claim(name: str, size: str = "1Gi") -> PersistentVolumeClaim:
    resources = VolumeResourceRequirements({"storage": Quantity(size)})
    return PersistentVolumeClaim(
        ObjectMeta(name, namespace="default"), PersistentVolumeClaimSpec(("ReadWriteOnce",), resources)
    )
