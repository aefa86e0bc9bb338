"""Pods from files: what changes is seen, and what is wrong in one file changes nothing for the others."""

import asyncio
import fcntl
import os
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenkeel.agent.sources import file_watch, manifest_file, pod_files
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.host import inotify
from tests.descriptors import alone, descriptors

PATIENCE_SECONDS = 60.0


def manifest(*names, cpu="100m"):
    return "---\n".join(
        f"""apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - name: main
    image: host
    command: [sleep, inf]
    resources: {{requests: {{cpu: {cpu}}}}}
"""
        for name in names
    )


class Followed:
    """The file sets that a PodFiles yields, one after the other."""

    def __init__(self, files):
        self.files = files
        self._told = aiter(files)
        self.last = None

    async def until(self, is_so):
        """The first set from now on for which it is true; the set that was yielded last counts."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.last is None or not is_so(self.last):
                self.last = await anext(self._told)
        return self.last

    async def first(self):
        return await self.until(lambda found: True)

    async def names_are(self, *expected):
        return await self.until(lambda found: names(found) == sorted(expected))


@asynccontextmanager
async def following(*paths, **more):
    files = PodFiles([str(path) for path in paths], **more)
    try:
        yield Followed(files)
    finally:
        files.close()


def names(found):
    return sorted(pod.metadata.name for file in found.files for pod in file.pods)


def problems(found):
    return [problem for file in found.files for problem in file.problems]


def scanned(*paths, **more):
    """What one look finds."""
    return asyncio.run(PodFiles([str(path) for path in paths], **more).scan())


def replace(path, text):
    """Replaces the file as a whole, as editors do."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.rename(path)


# --- what is there


def test_files_come_in_order_of_name_with_their_pods_and_warnings(tmp_path):
    (tmp_path / "b.yml").write_text(manifest("b"))
    (tmp_path / "a.yaml").write_text(manifest("a", "c"))
    (tmp_path / "c.json").write_text('{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "s"}}')
    for ignored in (".hidden.yaml", "b.yml~", "c.txt", ".a.yaml.swp"):
        (tmp_path / ignored).write_text("{")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.yaml").write_text(manifest("d"))
    found = scanned(tmp_path)
    assert [(file.path, names(found._replace(files=(file,)))) for file in found.files] == [
        (f"{tmp_path}/a.yaml", ["a", "c"]),
        (f"{tmp_path}/b.yml", ["b"]),
        (f"{tmp_path}/c.json", []),
    ]
    assert problems(found) == []
    assert "no pod of a node alone: Namespace" in found.files[2].warnings[0]


def test_paths_are_absolute_so_that_they_are_the_same_after_a_restart(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(manifest("a"))
    monkeypatch.chdir(tmp_path)
    assert [file.path for file in scanned("a.yaml", "./a.yaml", ".").files] == [f"{tmp_path}/a.yaml"]


def test_a_path_that_is_not_there_is_reported(tmp_path):
    (found,) = scanned(tmp_path / "nope").files
    assert found.problems == (f"{tmp_path}/nope: no such file or directory",)


def test_of_two_files_with_the_same_pod_the_first_keeps_it(tmp_path):
    (tmp_path / "b.yaml").write_text(manifest("x", "y"))
    (tmp_path / "a.yaml").write_text(manifest("x"))
    found = scanned(tmp_path)
    assert [names(found._replace(files=(file,))) for file in found.files] == [["x"], ["y"]]
    assert found.files[0].problems == ()
    assert found.files[1].problems == (
        f"{tmp_path}/b.yaml: pod default/x stands in {tmp_path}/a.yaml too: that one is taken",
    )


def test_a_pod_that_stands_twice_in_one_file_is_a_problem_of_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text(manifest("x", "x"))
    found = scanned(tmp_path)
    assert names(found) == []
    assert "stands twice" in problems(found)[0]


# --- what is wrong


def make_sparse(path):
    path.touch()
    os.truncate(path, 1 << 40)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


WRONG = {
    "half-written": (lambda path: path.write_text(manifest("a")[:-40] + "  - {"), "is not YAML"),
    "garbage": (lambda path: path.write_text("]["), "is not YAML"),
    "invalid": (lambda path: path.write_text(manifest("a", cpu="lots")), "lots"),
    "another document invalid": (
        lambda path: path.write_text(manifest("a") + "---\n5\n"),
        "must be an object",
    ),
    "binary": (lambda path: path.write_bytes(bytes(range(256))), "is not text in UTF-8"),
    "zeros": (lambda path: path.write_bytes(bytes(4096)), "is not YAML"),
    "empty": (lambda path: path.write_text(" \n"), "is empty: to take its pods away, remove the file"),
    "huge": (lambda path: path.write_text("#" * (manifest_file.MAX_BYTES + 1)), "is larger than 4 MiB"),
    "sparse": (make_sparse, "is larger than 4 MiB"),
    "deep": (lambda path: path.write_text("[" * 200_000), "deep"),
    "many pods": (lambda path: path.write_text(many_pods()), "holds 2000 pods, and one file may hold 1000"),
    "a pipe": (os.mkfifo, "is not a file"),
    "a socket": (make_socket, "is not a file"),
    "a directory": (lambda path: path.mkdir(), "is not a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a file"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "is a link to nothing"),
    "a loop": (lambda path: path.symlink_to(path.name), "is a link that leads back to itself"),
}


def many_pods():
    template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: host}]}}"
    return "---\n".join(
        f"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d{number}}},"
        f" spec: {{replicas: 1000, selector: {{matchLabels: {{a: b}}}}, template: {template}}}}}\n"
        for number in range(2)
    )


@pytest.mark.parametrize("make, message", WRONG.values(), ids=WRONG)
def test_a_file_that_is_wrong_is_a_problem_of_that_file_only(tmp_path, make, message):
    (tmp_path / "z.yaml").write_text(manifest("z"))
    make(tmp_path / "a.yaml")
    found = scanned(tmp_path)
    assert names(found) == ["z"]
    (problem,) = found.files[0].problems
    assert problem.startswith(f"{tmp_path}/a.yaml")
    assert message in problem
    assert found.files[1].problems == ()


@pytest.mark.parametrize("make, message", WRONG.values(), ids=WRONG)
def test_a_file_that_becomes_wrong_keeps_the_pods_it_had(tmp_path, make, message):
    async def run():
        path = tmp_path / "a.yaml"
        path.write_text(manifest("a", "b"))
        files = PodFiles([str(tmp_path)])
        before = await files.scan()
        path.unlink()
        make(path)
        after = await files.scan()
        assert after.files[0].pods == before.files[0].pods
        assert message in after.files[0].problems[0]
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_text(manifest("b"))
        assert names(await files.scan()) == ["b"]
        assert problems(await files.scan()) == []
        path.unlink()
        assert (await files.scan()).files == ()

    asyncio.run(run())


def test_what_a_former_agent_read_stays_while_the_file_is_wrong(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(manifest("a"))
    (file,) = scanned(path).files
    path.write_text("{")
    before = {file.path: file, f"{tmp_path}/gone.yaml": file._replace(path=f"{tmp_path}/gone.yaml")}
    assert scanned(tmp_path, before=before).files[0].pods == file.pods
    assert len(scanned(tmp_path, before=before).files) == 1


def test_a_directory_that_cannot_be_read_keeps_its_files(tmp_path, monkeypatch):
    directory = tmp_path / "pods"
    directory.mkdir()
    (directory / "a.yaml").write_text(manifest("a"))

    async def run():
        files = PodFiles([str(directory)])
        assert names(await files.scan()) == ["a"]
        with monkeypatch.context() as patched:
            patched.setattr(pod_files, "MAX_FILES", 0)
            found = await files.scan()
            assert names(found) == ["a"]
            assert problems(found) == [
                f"{directory}: holds more than 0 manifests: none of its changes are taken up"
            ]
        directory.rename(tmp_path / "elsewhere")
        directory.symlink_to(directory)
        found = await files.scan()
        assert names(found) == ["a"]
        assert problems(found) == [f"{directory}: cannot be read: too many levels of symbolic links"]
        directory.unlink()
        found = await files.scan()
        assert names(found) == []
        assert problems(found) == [f"{directory}: no such file or directory"]

    asyncio.run(run())


@pytest.mark.parametrize("has_leases", [True, False])
def test_a_file_that_is_open_for_writing_is_left_until_it_is_closed(tmp_path, monkeypatch, has_leases):
    if not has_leases:
        monkeypatch.setattr(fcntl, "F_SETLEASE", 99999)  # as on a file system that has none
        monkeypatch.setattr(manifest_file, "_SETTLE_SECONDS", 3600.0)  # however slow this machine is
    monkeypatch.setattr(manifest_file, "PATIENCE_SECONDS", 3600.0)
    path = tmp_path / "a.yaml"
    path.write_text(manifest("a", "b"))
    os.utime(path, (1, 1))

    async def run():
        files = PodFiles([str(tmp_path)])
        assert names(await files.scan()) == ["a", "b"]
        with path.open("w") as writer:  # empties it
            assert names(await files.scan()) == ["a", "b"]
            writer.write(manifest("a"))
            writer.flush()
            found = await files.scan()
            assert names(found) == ["a", "b"]
            assert problems(found) == []
            monkeypatch.setattr(manifest_file, "PATIENCE_SECONDS", 0.0)
            (problem,) = problems(await files.scan())
            assert "is being written: it is read when its writer has closed it" in problem
        os.utime(path, (1, 1))
        found = await files.scan()
        assert names(found) == ["a"]
        assert problems(found) == []

    asyncio.run(run())


def test_what_has_not_changed_is_not_parsed_again(tmp_path, monkeypatch):
    parsed = []

    def counted(text, *rest):
        parsed.append(text)
        return read_manifests(text, *rest)

    monkeypatch.setattr(manifest_file, "read_manifests", counted)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(manifest(name))
    (tmp_path / "wrong.yaml").write_text("{")

    async def run():
        files = PodFiles([str(tmp_path)])
        first = await files.scan()
        assert len(parsed) == 3
        (tmp_path / "a.yaml").touch()
        replace(tmp_path / "b.yaml", manifest("b"))  # another inode, the same bytes
        assert await files.scan() == first
        assert len(parsed) == 3
        text = manifest("b").replace("100m", "200m")  # as long as before
        (tmp_path / "b.yaml").write_text(text)
        assert (await files.scan()) != first
        assert parsed[3:] == [text]

    asyncio.run(run())


def test_a_file_that_was_read_within_a_tick_of_its_change_is_read_again_however_long_the_reading_took(
    tmp_path, monkeypatch
):
    """A change right after the reading may have the same timestamp, and the same length."""
    path = tmp_path / "a.yaml"
    path.write_text(manifest("a"))
    os.utime(path, (1000, 1000))
    now = [1000.01]
    read = os.read

    def slowly(descriptor, size):
        now[0] += 1
        return read(descriptor, size)

    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(manifest_file, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(manifest_file, "time", clock)
    monkeypatch.setattr(os, "read", slowly)
    first = manifest_file.reread(str(path), None, Profile.DOCUMENTS)
    assert first.fingerprint == ()
    again = manifest_file.reread(str(path), first, Profile.DOCUMENTS)
    assert again.fingerprint != ()


# --- what changes


def test_files_that_come_change_and_go_are_seen(tmp_path):
    async def run():
        async with following(tmp_path) as followed:
            assert (await followed.first()).files == ()
            (tmp_path / "a.yaml").write_text(manifest("a"))
            await followed.names_are("a")
            (tmp_path / "a.yaml").write_text(manifest("a", "b"))
            await followed.names_are("a", "b")
            replace(tmp_path / "a.yaml", manifest("b"))
            await followed.names_are("b")
            (tmp_path / "a.yaml").rename(tmp_path / "c.yaml")
            found = await followed.until(lambda found: [file.path[-6:] for file in found.files] == ["c.yaml"])
            assert names(found) == ["b"]
            (tmp_path / "c.yaml").write_text("{")
            found = await followed.until(problems)
            assert names(found) == ["b"]
            (tmp_path / "c.yaml").rename(tmp_path / "c.yaml.off")
            await followed.names_are()

    asyncio.run(run())


def test_a_file_that_is_replaced_in_steps_is_never_seen_as_gone(tmp_path):
    """As an editor does that keeps a copy: rename the old one away, write the new one."""
    path = tmp_path / "a.yaml"

    async def run():
        path.write_text(manifest("a"))
        async with following(tmp_path) as followed:
            await followed.names_are("a")
            for name in ("b", "c", "d", "e"):
                path.rename(tmp_path / "a.yaml~")
                path.write_text(manifest("a", name))
                found = await followed.until(lambda found, name=name: names(found) in (["a", name], []))
                assert names(found) == ["a", name]

    asyncio.run(run())


def test_a_single_file_is_followed_through_renames_removal_and_return(tmp_path):
    path = tmp_path / "one.manifest"
    path.write_text(manifest("a"))
    (tmp_path / "other.yaml").write_text(manifest("other"))

    async def run():
        async with following(path) as followed:
            await followed.names_are("a")
            replace(path, manifest("b"))
            await followed.names_are("b")
            path.unlink()
            await followed.names_are()
            path.write_text(manifest("c"))
            await followed.names_are("c")

    asyncio.run(run())


def test_a_directory_is_followed_when_it_goes_and_comes_back_by_whatever_way(tmp_path):
    directory = tmp_path / "deep" / "pods"

    async def run():
        async with following(directory) as followed:
            await followed.names_are()
            directory.mkdir(parents=True)
            (directory / "a.yaml").write_text(manifest("a"))
            await followed.names_are("a")
            directory.rename(tmp_path / "deep" / "old")
            await followed.names_are()
            (tmp_path / "deep" / "old" / "a.yaml").write_text(manifest("of old"))
            directory.mkdir()
            (directory / "b.yaml").write_text(manifest("b"))
            await followed.names_are("b")
            (directory / "b.yaml").unlink()
            directory.rmdir()
            await followed.names_are()
            (tmp_path / "deep" / "old" / "a.yaml").write_text(manifest("c"))
            (tmp_path / "deep" / "old").rename(directory)
            await followed.names_are("c")
            (directory / "a.yaml").write_text(manifest("d"))
            await followed.names_are("d")

    asyncio.run(run())


def test_a_volume_of_a_config_map_changes_by_the_swap_of_one_link(tmp_path):
    """Kubernetes' way: x.yaml → ..data/x.yaml, ..data → a directory with the time in its name."""

    def publish(version, text):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "x.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(f"..{version}")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    async def run():
        publish("2026_1", manifest("a"))
        (tmp_path / "x.yaml").symlink_to("..data/x.yaml")
        async with following(tmp_path) as followed:
            await followed.names_are("a")
            publish("2026_2", manifest("b"))
            await followed.names_are("b")
            publish("2026_3", manifest("c"))
            await followed.names_are("c")

    asyncio.run(run())


def test_links_are_followed_wherever_they_lead(tmp_path):
    for version in ("v1", "v2"):
        (tmp_path / version / "pods").mkdir(parents=True)
        (tmp_path / version / "pods" / "a.yaml").write_text(manifest(version))
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "target").write_text(manifest("target"))
    (tmp_path / "v2" / "pods" / "link.yaml").symlink_to("../../elsewhere/target")

    async def run():
        async with following(tmp_path / "current" / "pods") as followed:
            await followed.names_are("v1")
            (tmp_path / "new").symlink_to("v2")
            (tmp_path / "new").rename(tmp_path / "current")
            await followed.names_are("v2", "target")
            replace(tmp_path / "elsewhere" / "target", manifest("other"))
            await followed.names_are("v2", "other")

    asyncio.run(run())


def test_a_file_that_may_be_read_again_is_read(tmp_path):
    path = tmp_path / "a.yaml"

    async def run():
        path.symlink_to("missing")
        async with following(tmp_path) as followed:
            await followed.until(problems)
            (tmp_path / "missing").write_text(manifest("a"))
            await followed.names_are("a")

    asyncio.run(run())


def test_a_file_without_end_of_writing_does_not_keep_others_from_being_seen(tmp_path):
    async def run():
        with (tmp_path / "a.yaml").open("w") as writer:
            writer.write(manifest("a"))
            writer.flush()
            async with following(tmp_path) as followed:
                assert names(await followed.first()) == []
                (tmp_path / "b.yaml").write_text(manifest("b"))
                await followed.names_are("b")
                writer.close()
                await followed.names_are("a", "b")

    asyncio.run(run())


def test_without_inotify_changes_are_still_seen_with_a_note_that_it_takes_longer(tmp_path, monkeypatch):
    class Without:
        def __init__(self):
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(file_watch, "Inotify", Without)
    monkeypatch.setattr(file_watch, "_RESCAN_WITHOUT_SECONDS", 0.02)

    async def run():
        async with following(tmp_path) as followed:
            (note,) = (await followed.first()).notes
            assert note.startswith("changes of manifests are noticed after up to 0.02 s, not at once: ")
            assert "fs.inotify.max_user_instances" in note
            (tmp_path / "a.yaml").write_text(manifest("a"))
            await followed.names_are("a")
            monkeypatch.setattr(file_watch, "Inotify", inotify.Inotify)
            await followed.until(lambda found: not found.notes)

    asyncio.run(run())


def test_what_was_lost_when_the_kernels_queue_ran_over_is_seen_by_looking(tmp_path, monkeypatch):
    class Forgetful(inotify.Inotify):
        def read(self):
            if list(super().read()):
                yield inotify.FileEvent(-1, inotify.OVERFLOW, "")

    monkeypatch.setattr(file_watch, "Inotify", Forgetful)

    async def run():
        async with following(tmp_path) as followed:
            await followed.first()
            (tmp_path / "a.yaml").write_text(manifest("a"))
            await followed.names_are("a")

    asyncio.run(run())


def test_other_files_beside_the_manifests_cause_no_wake_up(tmp_path, monkeypatch):
    looks = []
    real = PodFiles._look_now  # noqa: SLF001

    def counted(self):
        looks.append(1)
        return real(self)

    monkeypatch.setattr(PodFiles, "_look_now", counted)

    async def run():
        async with following(tmp_path / "a.yaml") as followed:
            await followed.first()
            count = len(looks)
            for number in range(100):
                (tmp_path / f"{number}.log").write_text("x")
            (tmp_path / "a.yaml").write_text(manifest("a"))
            await followed.names_are("a")
            assert len(looks) <= count + 3

    asyncio.run(run())


def test_files_that_come_all_at_once_are_all_seen(tmp_path):
    async def run():
        async with following(tmp_path) as followed:
            await followed.first()
            for number in range(200):
                (tmp_path / f"{number:03}.yaml").write_text(manifest(f"p{number}") if number % 2 else "{")
            found = await followed.until(lambda found: len(found.files) == 200)
            assert len(names(found)) == 100
            for path in Path(tmp_path).iterdir():
                path.unlink()
            await followed.names_are()

    asyncio.run(run())


@alone
def test_closing_ends_the_iteration_and_nothing_is_left_open(tmp_path):
    async def run():
        before = descriptors()
        files = PodFiles([str(tmp_path)])

        async def read():
            return [found async for found in files]

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        await files.scan()
        files.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reading
        assert descriptors() <= before

    asyncio.run(run())


def test_an_image_is_named_from_where_its_manifest_stands(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec: {containers: [{name: main, image: ./rootfs, command: [x]}]}\n"
    )
    (pod,) = asyncio.run(PodFiles([str(tmp_path)]).scan()).files[0].pods
    assert pod.spec.containers[0].image == str(tmp_path / "rootfs")
