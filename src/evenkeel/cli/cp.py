"""`evenkeel cp`: files and directories to a container, and from one, through the container's own tar."""

import argparse
import os
import posixpath
import threading
from collections.abc import Callable
from typing import IO, Self

from evenkeel.cli.arguments import add_namespace_flag, add_state_flag
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.interactive import add_container_flag
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.sessions import NOT_FOUND, SessionEnd

USAGE = "SOURCE TARGET [-c CONTAINER] [-n NS]; one of them is POD:PATH or NS/POD:PATH"
EXAMPLES = """examples:
  evenkeel cp site.conf web:/etc/nginx/            to a directory of the container
  evenkeel cp ./site web:/srv/site -c app          a directory, to a container by name
  evenkeel cp web:/var/log/app ./logs              from the container
  evenkeel cp batch/job-0:/tmp/report.csv .        from a pod of another namespace

The container needs tar. Modes are kept, owners are not. From a container only files and directories are taken: links
are skipped, and nothing is written outside of TARGET.
"""
_MOST_SAID_BYTES = 4096


class Place(NamedTuple):
    """A path of this machine, or of a pod."""

    path: str
    pod: str = ""
    namespace: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a path, or POD:PATH")
    parser.add_argument("target", metavar="TARGET", help="a path, or POD:PATH")
    add_container_flag(parser)
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    source, target = place(args.source, args.namespace), place(args.target, args.namespace)
    if bool(source.pod) == bool(target.pod):
        raise EvenkeelError(
            f"cp {args.source} {args.target}: one of them must be POD:PATH, and the other a path",
            hint="a file of this machine whose name has a colon is written as ./NAME",
        )
    client = client_from(args)
    if target.pod:
        _send(_Container(client, target, args.container), source.path, target.path)
    else:
        _fetch(_Container(client, source, args.container), source.path, target.path)
    return 0


def place(word: str, namespace: str) -> Place:
    """Reads POD:PATH, NS/POD:PATH, or a path. Raises EvenkeelError."""
    before, colon, path = word.partition(":")
    if not word:
        raise EvenkeelError("cp: a path is empty")
    if not colon or before.startswith((".", "/")) or before.count("/") > 1:
        return Place(word)
    if not path:
        raise EvenkeelError(f"cp {word}: the path behind the colon is missing")
    above, slash, pod = before.rpartition("/")
    if not pod or (slash and not above):
        raise EvenkeelError(f"cp {word}: write POD:PATH or NS/POD:PATH")
    return Place(path, pod, above or namespace)


class _Container:
    """Runs commands in the container, with files as their streams."""

    def __init__(self, client: Client, at: Place, container: str) -> None:
        self._client = client
        self._at = at
        self._container = container

    def execute(
        self, *command: str, source: int = -1, output: Callable[[bytes], None] = lambda _: None
    ) -> tuple[SessionEnd, str]:
        """Returns the end of the session, and the command's standard error."""
        from evenkeel.cli.remote import Remote, Sinks, pod_path, relay
        from evenkeel.server.channels import STDERR, STDOUT

        parameters = [("command", word) for word in command]
        parameters.append(("stdin", "true" if source >= 0 else "false"))
        if self._container:
            parameters.append(("container", self._container))
        remote = Remote(self._client, pod_path(self._at.namespace, self._at.pod, "exec"), parameters)
        said = bytearray()

        def keep(data: bytes) -> None:
            said.extend(data)
            del said[:-_MOST_SAID_BYTES]  # a hostile command may write without end

        try:
            end = relay(remote, source, Sinks({STDOUT: output, STDERR: keep}))
        finally:
            remote.close()
        return end, bytes(said).decode(errors="replace").strip()

    def is_directory(self, path: str) -> bool:
        return self.execute("test", "-d", path)[0].exit_code == 0


def _send(container: _Container, source: str, target: str) -> None:
    from evenkeel.cli.tar_streams import write_tree

    if not os.path.lexists(source):
        raise EvenkeelError(f"cp: there is no {source}")
    name = os.path.basename(os.path.abspath(source))
    if target.endswith("/") or container.is_directory(target):
        directory = target
    else:
        directory, name = posixpath.split(target)
    command = ("tar", "-xmf", "-", "-C", directory or ".")
    with _Worker(lambda file: write_tree(source, name, file), is_writer=True) as worker:
        end, said = container.execute(*command, source=worker.descriptor)
    _check(end, said, worker.error)


def _fetch(container: _Container, source: str, target: str) -> None:
    from evenkeel.cli.remote import write_all
    from evenkeel.cli.tar_streams import read_tree

    path = posixpath.normpath(source)
    directory, name = posixpath.split(path)
    if name in ("", ".", ".."):
        directory, name = path, "."
    if os.path.isdir(target):
        target = os.path.join(target, name) if name != "." else target
    elif target.endswith("/"):
        raise EvenkeelError(f"cp: there is no directory {target}")
    counts: list[int] = []
    command = ("tar", "-cf", "-", "-C", directory or ".", f"./{name}" if name != "." else ".")
    with _Worker(lambda file: counts.append(read_tree(file, name, target)), is_writer=False) as worker:
        try:
            end, said = container.execute(*command, output=lambda data: write_all(worker.descriptor, data))
        except BrokenPipeError:  # the reader has stopped, and says why
            end, said = SessionEnd(), ""
    _check(end, said, worker.error)
    if counts == [0]:
        raise EvenkeelError(f"cp: {source} has nothing that could be copied")


def _check(end: SessionEnd, said: str, error: BaseException | None) -> None:
    if end.exit_code == NOT_FOUND:
        raise EvenkeelError("cp needs tar in the container, and there is none", hint=end.problem)
    if end.exit_code:
        raise EvenkeelError(
            f"cp: the container's tar failed: {said.splitlines()[0] if said else end.problem}"
        )
    if error is not None:
        raise error


class _Worker:
    """Reads or writes the tar stream in a thread, at one end of a pipe; `descriptor` is the other end."""

    def __init__(self, work: Callable[[IO[bytes]], object], *, is_writer: bool) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        self.error: BaseException | None = None
        self.descriptor, theirs = (read, write) if is_writer else (write, read)
        self._file = os.fdopen(theirs, "wb" if is_writer else "rb", buffering=0)
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work(self._file)
        except BrokenPipeError:
            pass  # the container's tar has ended, and says why
        except Exception as error:  # noqa: BLE001 it is raised in the main thread
            self.error = error
        finally:
            self._file.close()
