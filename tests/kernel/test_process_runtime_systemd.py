"""Containers in scopes that systemd has made."""

import secrets
import tempfile
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.drivers.processes import PLACEHOLDER
from tests.kernel.conftest import PREFIX
from tests.kernel.containers import Containers, until
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("systemd")

MOUNT = Path("/sys/fs/cgroup")


class Scopes(Containers):
    def cgroup(self, name: str) -> str:
        return f"{self.root}/evenkeel-{name}{self.root[1:].removesuffix('.slice')}-main.scope"


@pytest.mark.req("A24", "A17")
def test_a_container_is_in_its_scope_which_lives_as_long_as_it():
    name = f"{PREFIX}z{secrets.token_hex(3)}"
    config = KubeletConfiguration(cgroup_root=f"/{name}", cgroup_driver="systemd")

    async def body(world: Containers) -> None:
        scope = MOUNT / world.cgroup("lasting")[1:]
        # Without a process of its own that reads: it could still be there after its line is in the log.
        record = await world.shell("lasting", "read line < /proc/self/cgroup; echo $line; exec sleep 600")
        await until(lambda: world.log("lasting"))
        # Inside, the scope is the root of a cgroup namespace: it was entered before that was made.
        assert world.log("lasting") == ["0::/"]
        seen = Path(f"/proc/{record.process.pid}/cgroup").read_text()
        assert seen == f"0::{world.cgroup('lasting')}\n"
        await until(lambda: not (scope / PLACEHOLDER).exists())
        assert world.processes("lasting") == [record.process.pid]
        await world.runtime.stop(record.attempt, 0)
        await world.exited()
        await until(lambda: not scope.exists())
        # A container that has ended before its placeholder was removed.
        await world.start("brief", "true")
        await world.exited()
        await until(lambda: not (MOUNT / world.cgroup("brief")[1:]).exists())

    with tempfile.TemporaryDirectory(prefix="evenkeel-") as directory:
        world = Scopes(f"/{name}.slice", Path(directory).resolve(), config)
        try:
            world.run(body)
            eventually(lambda: world.supervisor() == 0)
        finally:
            driver = driver_for(detect(), config)
            driver.remove(f"/{name}.slice")
            driver.close()
            world.close()
