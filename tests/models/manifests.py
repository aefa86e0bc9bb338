"""Manifests that several tests apply."""

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
