"""Images that are paths relative to their manifest. Pure.

Code that reads manifests needs this, and nothing else of the room `process`.
"""

import os

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.workloads import Workload, template_of, with_template
from evenkeel.runtime.images.references import is_relative


def with_absolute_images(pod: Pod, manifest_directory: str) -> Pod:
    """Makes `./…` and `../…` images absolute, relative to the directory of the manifest. Pure."""

    def absolute(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(
            container._replace(image=os.path.normpath(os.path.join(manifest_directory, container.image)))
            if is_relative(container.image)
            else container
            for container in containers
        )

    spec = pod.spec
    if not any(is_relative(container.image) for container in spec.every_container):
        return pod
    return pod._replace(
        spec=spec._replace(
            containers=absolute(spec.containers), init_containers=absolute(spec.init_containers)
        )
    )


def workload_with_absolute_images(workload: Workload, manifest_directory: str) -> Workload:
    """The same for the pod template of a workload."""
    template = template_of(workload)
    spec = with_absolute_images(Pod(spec=template.spec), manifest_directory).spec
    return with_template(workload, template._replace(spec=spec))
