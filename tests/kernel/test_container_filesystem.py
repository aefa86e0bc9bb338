"""The filesystem of a container, and the protection of the host's and the agent's files from it."""

# In there one asks the kernel itself.
# ruff: noqa: PTH101, PTH102, PTH106, PTH110, PTH112, PTH115, PTH116, PTH123, PTH208, PTH211

import os
import pty
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.launch import surroundings
from evenkeel.runtime.process.supervisor.rootfs import FilesystemRefused, FilesystemSpec, Mount
from evenkeel.runtime.procfs import read_mounts
from tests.kernel.cgroups import hierarchies
from tests.kernel.inside import NOBODY, inside, read, refused_with, write

READ_ONLY = "EROFS"
MS_REMOUNT = 0x20


class Place:
    """A state directory with an attempt of a container, and a directory of the host beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "var/state"
        self.attempt = self.state / "pods/uid/app.1"
        self.volume = self.state / "pods/uid/volumes/data"
        self.host = directory / "host"
        for path in (self.attempt, self.volume, self.host):
            path.mkdir(parents=True)
        (self.state / "journal.db").write_text("the agent's")
        self.volume.chmod(0o777)

    def spec(self, *mounts: Mount, **more: Any) -> FilesystemSpec:
        return FilesystemSpec(str(self.state), str(self.attempt), mounts=mounts)._replace(**more)

    def mount(self, target: str, **more: Any) -> Mount:
        return Mount(str(self.volume), target)._replace(**more)

    def host_path(self, path: Path | str, target: str, **more: Any) -> Mount:
        return Mount(str(path), target, is_ours=False)._replace(**more)

    def surveyed(self, *mounts: Mount) -> FilesystemSpec:
        around = surroundings(StatePaths(str(self.state)), read_mounts())
        return self.spec(*mounts, hidden=around.hidden, read_only=around.read_only)


@pytest.fixture
def place() -> Iterator[Place]:
    """Not in /tmp, which is each container's own; and on a filesystem that can hold an image's layers."""
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="evenkeel-test-") as directory:
        syscalls.mount("tmpfs", directory, "tmpfs", data="mode=0755,size=256m")
        try:
            yield Place(Path(directory).resolve())
            assert Path("/proc/self/mountinfo").read_text().count(directory) == 1
        finally:
            syscalls.umount(directory)


def test_the_hosts_files_are_there_and_the_agents_are_not(place: Place) -> None:
    (place.host / "file").write_text("the host's")

    def act() -> object:
        return [
            read(f"{place.host}/file"),
            refused_with(lambda: write(f"{place.host}/new", "written")),
            refused_with(lambda: write(f"{place.host}/file", "written")),
            os.listdir(place.state),
            refused_with(lambda: write(f"{place.state}/x")),
        ]

    assert inside(place.spec(), act) == ["the host's", READ_ONLY, READ_ONLY, [], READ_ONLY]
    assert not (place.host / "new").exists()
    assert (place.state / "journal.db").read_text() == "the agent's"


def test_what_a_container_writes_for_a_while_is_its_own(place: Place) -> None:
    """On the host's files: as systemd's PrivateTmp, and nothing of the host's services in /run."""
    directories = ("/tmp", "/var/tmp", "/run")

    def act() -> object:
        found = [os.listdir(directory) for directory in directories]
        for directory in directories:
            write(f"{directory}/evenkeel-test", "written")
        return [*found[:2], [name for name in found[2] if name.endswith(".sock")]]

    assert inside(place.spec(), act) == [[], [], []]
    assert not [path for path in directories if Path(path, "evenkeel-test").exists()]
    assert (
        place.attempt / "upper/evenkeel-test"
    ).read_text() == "written"  # counted as the container's layer


def test_names_are_resolved_on_the_hosts_files_though_run_is_not_the_hosts(place: Place) -> None:
    def host() -> None:
        syscalls.mount("tmpfs", "/run", "tmpfs")
        os.mkdir("/run/resolver")
        write("/run/resolver/stub.conf", "nameserver 127.0.0.53")
        syscalls.mount("tmpfs", "/etc", "tmpfs")
        os.symlink("../run/resolver/stub.conf", "/etc/resolv.conf")

    assert inside(place.spec(), lambda: read("/etc/resolv.conf"), host=host) == "nameserver 127.0.0.53"


def test_what_covers_the_agents_files_cannot_be_taken_away(place: Place) -> None:
    def act() -> object:
        state = str(place.state)
        return [
            refused_with(lambda: syscalls.umount(state, syscalls.MNT_DETACH)),
            refused_with(lambda: syscalls.mount(None, state, flags=MS_REMOUNT)),
            refused_with(lambda: syscalls.mount(None, "/sys", flags=MS_REMOUNT | syscalls.MS_BIND)),
            refused_with(lambda: syscalls.mount("/", "/mnt", flags=syscalls.MS_BIND)),
            refused_with(lambda: syscalls.unshare(syscalls.CLONE_NEWNS)),
            refused_with(lambda: os.mknod("/dev/sda", stat.S_IFBLK, os.makedev(254, 0))),
            refused_with(lambda: os.open("/proc/1/root/../..", os.O_RDONLY)),
        ]

    assert inside(place.spec(), act) == ["EPERM"] * 6 + [""]


def test_the_agents_files_are_covered_in_what_else_leads_to_them(place: Place) -> None:
    """The filesystem is mounted elsewhere too, and volumes show directories above the state directory."""
    other = place.directory / "other"
    part = place.directory / "part"
    other.mkdir()
    part.mkdir()

    def host() -> None:
        syscalls.mount(str(place.directory / "var"), str(other), flags=syscalls.MS_BIND)
        syscalls.mount(str(place.state / "pods"), str(part), flags=syscalls.MS_BIND)

    def act() -> object:
        ways = (f"{other}/state", part, "/mnt/state", f"/media/{place.state}")
        return [[os.listdir(way), refused_with(lambda way=way: write(f"{way}/x"))] for way in ways]

    above = place.host_path(place.directory / "var", "/mnt")
    whole = place.host_path("/", "/media")
    assert inside(lambda: place.surveyed(above, whole), act, host=host) == [[[], READ_ONLY]] * 4


def test_a_host_path_that_turned_into_the_state_directory_shows_nothing(place: Place) -> None:
    """As when a symlink is put in its place after it was looked at."""
    (place.directory / "swapped").symlink_to(place.state)
    mount = place.host_path(place.directory / "swapped", "/mnt")
    assert inside(place.spec(mount), lambda: os.listdir("/mnt")) == []


def test_cgroups_are_seen_and_not_changed(place: Place) -> None:
    """Not where they are, nor in a volume that shows them, nor where else the host has mounted them."""
    tops = [str(path) for path in hierarchies().values()]
    elsewhere = place.directory / "cgroups"
    elsewhere.mkdir()

    def host() -> None:
        syscalls.mount("none", str(elsewhere), "cgroup2")

    def act() -> object:
        return [
            [
                bool(os.listdir(top)),
                refused_with(lambda top=top: write(f"{top}/cgroup.procs", "0")),
                refused_with(lambda top=top: os.mkdir(f"{top}/x")),
            ]
            for top in [*tops, *(f"/mnt{top}" for top in tops), str(elsewhere)]
        ]

    answers = inside(lambda: place.surveyed(place.host_path("/", "/mnt")), act, host=host)
    assert answers == [[True, READ_ONLY, READ_ONLY]] * (2 * len(tops) + 1)


def test_kernel_settings_are_seen_and_not_changed(place: Place) -> None:
    settings = [
        path
        for path in ("/proc/sys/kernel/hostname", "/proc/sys/vm/swappiness", "/proc/sysrq-trigger")
        if Path(path).exists()
    ]

    def act() -> object:
        return [
            refused_with(lambda path=path: write(path, "1"))
            for path in (*settings, *("/mnt" + s for s in settings))
        ]

    assert inside(place.spec(place.host_path("/", "/mnt")), act) == [READ_ONLY] * 2 * len(settings)


def test_processes_are_the_containers_own(place: Place) -> None:
    def act() -> object:
        write("/proc/self/oom_score_adj", "1000")
        return [
            sorted(name for name in os.listdir("/proc") if name.isdigit()),
            os.getpid(),
            read("/proc/self/oom_score_adj"),
        ]

    assert inside(place.spec(), act) == [["1"], 1, "1000\n"]


def test_devices_are_those_that_do_no_harm(place: Place) -> None:
    def act() -> object:
        write("/dev/null")
        main, other = pty.openpty()
        os.write(other, b"hi")
        with open("/dev/shm/x", "wb") as file:
            file.truncate(1 << 20)
        shm = os.statvfs("/dev/shm")
        kinds = {name: stat.S_IFMT(os.lstat(f"/dev/{name}").st_mode) for name in os.listdir("/dev")}
        return [
            len(read("/dev/zero", 8)),
            len(os.read(os.open("/dev/urandom", os.O_RDONLY), 8)),
            refused_with(lambda: write("/dev/full")),
            os.read(main, 2).decode(),
            shm.f_blocks * shm.f_frsize,
            sorted(name for name, kind in kinds.items() if kind == stat.S_IFCHR),
            [name for name, kind in kinds.items() if kind == stat.S_IFBLK],
            os.readlink("/dev/fd"),
        ]

    assert inside(place.spec(), act) == [
        8, 8, "ENOSPC", "hi", 64 << 20, ["full", "null", "random", "tty", "urandom", "zero"], [], "/proc/self/fd",
    ]  # fmt: skip


def test_device_nodes_elsewhere_open_nothing(place: Place) -> None:
    os.mknod(place.host / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(place.volume / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def act() -> object:
        paths = (f"{place.host}/null", "/mnt/null", "/media/null")
        return [refused_with(lambda path=path: os.open(path, os.O_RDONLY)) for path in paths]

    mounts = (place.mount("/mnt"), place.host_path(place.host, "/media"))
    assert inside(place.spec(*mounts), act) == ["EACCES"] * 3


@pytest.mark.parametrize("path", ["/dev/termination-log", "/mnt/message", "/nowhere/yet/message"])
def test_a_termination_message_is_left_where_the_manifest_says(path: str, place: Place) -> None:
    def act() -> object:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, b"the reason")
        return read("/dev/termination-log")  # which is handed to the supervisor

    assert inside(place.spec(termination_message_path=path), act) == "the reason"
    assert not Path(path).exists()


def test_a_termination_message_is_bounded_and_no_disk(place: Place) -> None:
    def act() -> object:
        descriptor = os.open("/dev/termination-log", os.O_WRONLY)
        refusal = refused_with(lambda: [os.write(descriptor, b"x" * 4096) for _ in range(1000)])
        return [refusal, os.fstat(descriptor).st_size <= 64 << 10]

    assert inside(place.spec(), act) == ["ENOSPC", True]
    assert not [path for path in place.attempt.rglob("*") if path.is_file()]


def test_volumes_are_mounted_where_the_host_has_nothing_and_the_host_stays_as_it_is(place: Place) -> None:
    (place.host / "sub").mkdir()
    (place.host / "file").write_text("the host's")
    (place.host / "link").symlink_to("file")
    place.host.chmod(0o750)
    top = set(os.listdir("/"))
    deep = f"{place.host}/new/deep"

    def act() -> object:
        write(f"{deep}/a", "in the volume")
        return [
            refused_with(lambda: write(f"{place.host}/sub/b", "on the host")),
            refused_with(lambda: write(f"{place.host}/file", "the host'S")),
            read("/evenkeel-test/one/a"),
            sorted(os.listdir(place.host)),
            read(f"{place.host}/link"),
            stat.S_IMODE(os.stat(place.host).st_mode),
            sorted(set(os.listdir("/")) - {"evenkeel-test"}),
            refused_with(lambda: os.listdir("/proc/self/fd")),
            os.listdir(place.state),
        ]

    mounts = (place.mount("/evenkeel-test/one"), place.mount("/evenkeel-test/two"), place.mount(deep))
    assert inside(place.spec(*mounts), act) == [
        READ_ONLY,
        READ_ONLY,
        "in the volume",
        ["file", "link", "new", "sub"],
        "the host's",
        0o750,
        sorted(top),
        "",
        [],
    ]
    assert (place.volume / "a").read_text() == "in the volume"
    assert not (place.host / "sub/b").exists()
    assert sorted(path.name for path in place.host.iterdir()) == ["file", "link", "sub"]
    assert set(os.listdir("/")) == top


@pytest.mark.parametrize("is_outer_first", [True, False])
def test_volumes_are_mounted_in_volumes_whatever_their_order(is_outer_first: bool, place: Place) -> None:
    inner = place.state / "pods/uid/volumes/inner"
    inner.mkdir()
    mounts = [place.mount("/mnt"), Mount(str(inner), "/mnt/in/side")]

    def act() -> None:
        write("/mnt/in/side/file")

    inside(place.spec(*(mounts if is_outer_first else reversed(mounts))), act)
    assert (inner / "file").exists()
    assert not (place.volume / "in/side/file").exists()


def test_a_volume_within_one_of_the_hosts_makes_nothing_there(place: Place) -> None:
    mounts = (place.host_path(place.host, "/mnt"), place.mount("/mnt/in/side"))
    inside(place.spec(*mounts), lambda: write("/mnt/in/side/file"))
    assert (place.volume / "file").exists()
    assert list(place.host.iterdir()) == []


def test_a_file_of_the_host_is_mounted_as_a_file(place: Place) -> None:
    (place.host / "file").write_text("the host's")
    mounts = (place.host_path(place.host / "file", "/etc/evenkeel-test.conf", is_read_only=True),)

    def act() -> object:
        path = "/etc/evenkeel-test.conf"
        return [read(path), refused_with(lambda: write(path))]

    assert inside(place.spec(*mounts), act) == ["the host's", READ_ONLY]
    assert not Path("/etc/evenkeel-test.conf").exists()


def test_a_read_only_volume_is_read_only(place: Place) -> None:
    other = place.mount("/media")
    mounts = (place.mount("/mnt", is_read_only=True), other)

    def act() -> object:
        write("/media/file", "text")
        return [
            read("/mnt/file"),
            refused_with(lambda: write("/mnt/file")),
            refused_with(lambda: os.mkdir("/mnt/x")),
        ]

    assert inside(place.spec(*mounts), act) == ["text", READ_ONLY, READ_ONLY]


def test_a_part_of_a_volume_is_made_and_mounted(place: Place) -> None:
    inside(place.spec(place.mount("/mnt", sub_path="a/b")), lambda: write("/mnt/file"))
    assert (place.volume / "a/b/file").exists()
    assert stat.S_IMODE((place.volume / "a").stat().st_mode) == 0o777


def test_a_part_of_a_volume_may_be_a_symlink_within_it(place: Place) -> None:
    (place.volume / "real").mkdir()
    (place.volume / "link").symlink_to("real")
    inside(place.spec(place.mount("/mnt", sub_path="link")), lambda: write("/mnt/file"))
    assert (place.volume / "real/file").exists()


@pytest.mark.parametrize("target", ["/etc", "../..", "../../../../../../../../etc", "inner/../../../.."])
@pytest.mark.parametrize("sub_path", ["link", "link/passwd", "link/new"])
def test_a_part_of_a_volume_never_leads_out_of_it(target: str, sub_path: str, place: Place) -> None:
    (place.volume / "inner").mkdir()
    (place.volume / "link").symlink_to(target)
    with pytest.raises(FilesystemRefused, match=f"subPath {sub_path} leads out of the volume"):
        inside(place.spec(place.mount("/mnt", sub_path=sub_path)), lambda: None)


def test_a_part_through_the_kernels_links_is_refused(place: Place) -> None:
    mount = place.host_path("/proc/self", "/mnt", sub_path="root")
    with pytest.raises(FilesystemRefused, match="subPath root"):
        inside(place.spec(mount), lambda: None)


@pytest.mark.parametrize(
    "target, said",
    [
        ("/proc/new", "is the kernel's"),
        ("/sys/new", "is the kernel's"),
        ("/etc/passwd", "but /etc/passwd is a file in the container"),
        ("/etc/passwd/new", "not a directory"),
    ],
)
def test_a_place_where_nothing_can_be_mounted_is_refused_with_a_sentence(
    target: str, said: str, place: Place
) -> None:
    with pytest.raises(FilesystemRefused, match=said):
        inside(place.spec(place.mount(target)), lambda: None)


def test_a_mount_point_that_is_a_broken_symlink_is_refused(place: Place) -> None:
    (place.host / "broken").symlink_to("nowhere")
    with pytest.raises(FilesystemRefused, match="is a symlink that leads nowhere"):
        inside(place.spec(place.mount(f"{place.host}/broken")), lambda: None)


def test_a_volume_that_is_gone_is_refused_with_a_sentence(place: Place) -> None:
    mount = place.host_path(place.directory / "gone", "/mnt")
    with pytest.raises(FilesystemRefused, match=r"volumeMount /mnt: .*gone cannot be opened: no such file"):
        inside(place.spec(mount), lambda: None)


def test_a_read_only_root_leaves_only_what_is_the_containers_own(place: Place) -> None:
    mounts = (place.mount("/evenkeel-test"), place.host_path(place.host, "/mnt"))

    def act() -> object:
        write("/evenkeel-test/file")
        write("/mnt/file")
        write("/dev/shm/file")
        write("/proc/self/oom_score_adj", "1000")
        paths = (f"{place.directory}/x", "/x", "/etc/x", "/tmp/x", "/proc/sys/kernel/hostname")
        return [refused_with(lambda path=path: write(path)) for path in paths]

    assert inside(place.spec(*mounts, is_read_only=True), act) == [READ_ONLY] * 5
    assert (place.host / "file").exists()


@pytest.fixture
def image(place: Place) -> Path:
    root = place.directory / "image,with:odd\\name"
    for path in ("etc", "data"):
        (root / path).mkdir(parents=True)
    (root / "etc/motd").write_text("the image's")
    (root / "loop").symlink_to("/data")
    root.chmod(0o751)
    return root


def test_an_image_is_the_root_and_is_not_changed(image: Path, place: Place) -> None:
    def act() -> object:
        os.chdir("/")
        found = sorted(os.listdir("/"))
        write("/etc/motd", "the container's")
        write("/new", "new")
        os.rmdir("/data")
        return [
            found,
            stat.S_IMODE(os.stat("/").st_mode),
            read("/etc/motd"),
            refused_with(lambda: os.stat(str(place.state))),
            read("/proc/sys/kernel/ostype"),
            refused_with(lambda: write("/proc/sys/kernel/hostname")),
            os.path.isdir("/sys/fs/cgroup"),
            len(read("/dev/zero", 4)),
        ]

    expected = ["data", "dev", "etc", "loop", "proc", "sys"]
    assert inside(place.spec(image=str(image)), act) == [
        expected, 0o751, "the container's", "ENOENT", "Linux\n", READ_ONLY, True, 4,
    ]  # fmt: skip
    assert sorted(path.name for path in image.iterdir()) == ["data", "etc", "loop"]
    assert (image / "etc/motd").read_text() == "the image's"
    assert (place.attempt / "upper/new").read_text() == "new"


def test_an_image_has_the_hosts_way_to_the_network(image: Path, place: Place) -> None:
    (image / "etc/hosts").write_text("the image's")

    def host() -> None:
        syscalls.mount("tmpfs", "/etc", "tmpfs")
        write("/etc/hosts", "the host's")
        write("/etc/resolv.conf", "the host's too")

    def act() -> object:
        found = [read("/etc/hosts"), read("/etc/resolv.conf")]
        write("/etc/hosts", "THE")
        return [*found, read("/etc/hosts")]

    spec = place.spec(image=str(image))
    assert inside(spec, act, host=host) == ["the host's", "the host's too", "THE host's"]
    assert (place.attempt / "upper/etc/hosts").read_text() == "THE host's"  # a copy, counted as its layer
    assert (image / "etc/hosts").read_text() == "the image's"


@pytest.mark.parametrize(
    "leads_to", ["/nowhere", "../run/resolver/stub.conf", "resolv.conf", "/proc/1/fd/99"]
)
def test_an_image_with_a_symlink_in_place_of_its_network_configuration_has_a_file(
    leads_to: str, image: Path, place: Place
) -> None:
    (image / "etc/resolv.conf").symlink_to(leads_to)

    def host() -> None:
        syscalls.mount("tmpfs", "/etc", "tmpfs")
        write("/etc/resolv.conf", "the host's")

    assert inside(place.spec(image=str(image)), lambda: read("/etc/resolv.conf"), host=host) == "the host's"
    assert os.readlink(image / "etc/resolv.conf") == leads_to


def test_no_process_gets_out_of_an_image(image: Path, place: Place) -> None:
    def act() -> object:
        os.mkdir("/jail")
        here = os.open("/", os.O_RDONLY)
        os.chroot("/jail")
        os.fchdir(here)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        return [os.path.exists(path) for path in ("/etc/motd", str(place.directory), "/usr")]

    assert inside(place.spec(image=str(image)), act) == [True, False, False]


def test_volumes_of_an_image_follow_its_own_symlinks(image: Path, place: Place) -> None:
    def act() -> object:
        write("/loop/file")
        write("/new/place/file2")
        return sorted(os.listdir("/data"))

    mounts = (place.mount("/loop"), place.mount("/new/place"))
    assert inside(place.spec(*mounts, image=str(image)), act) == ["file", "file2"]
    assert sorted(path.name for path in place.volume.iterdir()) == ["file", "file2"]
    assert list((image / "data").iterdir()) == []


def test_the_agents_files_are_covered_in_the_volumes_of_an_image(image: Path, place: Place) -> None:
    mounts = (place.host_path(place.directory / "var", "/mnt"), place.host_path("/", "/host"))

    def act() -> object:
        tops = [f"/host{path}" for path in hierarchies_seen]
        return [
            os.listdir("/mnt/state"),
            os.listdir(f"/host{place.state}"),
            refused_with(lambda: write("/host/proc/sys/kernel/hostname")),
            [refused_with(lambda top=top: os.mkdir(f"{top}/x")) for top in tops],
        ]

    hierarchies_seen = [str(path) for path in hierarchies().values()]
    assert inside(place.spec(*mounts, image=str(image)), act) == [
        [],
        [],
        READ_ONLY,
        [READ_ONLY] * len(hierarchies_seen),
    ]


def test_an_image_can_be_read_only(image: Path, place: Place) -> None:
    def act() -> object:
        write("/mnt/file")
        return [refused_with(lambda path=path: write(path)) for path in ("/x", "/etc/motd", "/data/x")]

    spec = place.spec(place.mount("/mnt"), image=str(image), is_read_only=True)
    assert inside(spec, act) == [READ_ONLY] * 3
    assert not (image / "mnt").exists()


def no_overlay(place: Place) -> None:
    """A state directory on a filesystem that cannot hold an upper layer: procfs."""
    syscalls.mount("/proc/fs", f"{place.attempt}/upper", flags=syscalls.MS_BIND)


def test_where_no_layer_can_be_had_a_writable_image_is_refused(image: Path, place: Place) -> None:
    (place.attempt / "upper").mkdir()
    with pytest.raises(FilesystemRefused, match="readOnlyRootFilesystem: true"):
        inside(place.spec(image=str(image)), lambda: None, host=lambda: no_overlay(place))


def test_where_no_layer_can_be_had_an_image_can_still_be_read_only(image: Path, place: Place) -> None:
    (place.attempt / "upper").mkdir()
    for path in ("proc", "sys", "dev"):
        (image / path).mkdir()

    def act() -> object:
        write("/data/file")
        write("/new/file2")
        return [
            read("/etc/motd"),
            refused_with(lambda: write("/x")),
            refused_with(lambda: write("/etc/motd")),
        ]

    spec = place.spec(place.mount("/data"), place.mount("/new"), image=str(image), is_read_only=True)
    assert inside(spec, act, host=lambda: no_overlay(place)) == ["the image's", READ_ONLY, READ_ONLY]
    assert not (image / "new").exists()


def owned_by_nobody(place: Place) -> None:
    for path in (place.directory, *place.directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    parent = place.directory
    while parent != parent.parent:
        if not os.stat(parent).st_mode & stat.S_IXOTH:
            os.chmod(parent, stat.S_IMODE(os.stat(parent).st_mode) | stat.S_IXOTH)
        parent = parent.parent


def test_a_user_who_is_not_root_has_all_of_it_too(image: Path, place: Place) -> None:
    owned_by_nobody(place)

    def act() -> object:
        write("/dev/null")
        write("/evenkeel-test/file")
        write("/dev/termination-log", "reason")
        return [
            read("/dev/termination-log"),
            os.listdir(place.state),
            sorted(name for name in os.listdir("/proc") if name.isdigit()),
            len(read("/dev/zero", 4)),
            refused_with(lambda: write(f"{place.state}/x")),
            refused_with(lambda: syscalls.umount(str(place.state), syscalls.MNT_DETACH)),
        ]

    assert inside(place.spec(place.mount("/evenkeel-test")), act, is_user=True) == [
        "reason",
        [],
        ["1"],
        4,
        READ_ONLY,
        "EPERM",
    ]
    assert (place.volume / "file").stat().st_uid == NOBODY


def test_a_user_who_is_not_root_has_images_too(image: Path, place: Place) -> None:
    owned_by_nobody(place)

    def act() -> object:
        write("/etc/motd", "the container's")
        return [read("/etc/motd"), refused_with(lambda: os.stat(str(place.state)))]

    assert inside(place.spec(image=str(image)), act, is_user=True) == ["the container's", "ENOENT"]
    assert (image / "etc/motd").read_text() == "the image's"
