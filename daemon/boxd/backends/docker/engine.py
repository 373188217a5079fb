"""A client of the Docker Engine's socket: containers and images, with errors for users.

Every call has a timeout. Errors contain the engine's own words. If the engine cannot be reached,
calls raise Unavailable with the remedy.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiodocker
import aiohttp

from boxd.errors import BoxdError, Unavailable, UnknownImage
from boxd.subprocesses import kill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

MIN_API = (1, 41)
"""API version of Docker 20.10, the first with cgroup namespaces for containers."""
TIMEOUT = 60.0
"""Seconds for one call."""
CONNECT_TIMEOUT = 5.0
PULL_TIMEOUT = 900.0
"""Seconds to pull or import a whole image."""
_NOT_FOUND, _CONFLICT, _BAD = 404, 409, 400
_UNREACHABLE = 900
"""The status that aiodocker reports for a refused connection."""
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "does not exist")
"""Answers of registries to an unknown image. The engine reports them as its own error."""
_TAR_CHUNK = 1 << 20
_REFUSED_MAPS = {"userns": "userns-remap", "rootless": "rootless"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine's properties. `cgroup_driver` is `cgroupfs` or `systemd`.

    `runtimes` are the names of its OCI runtimes.
    """

    version: str
    api: str
    storage_driver: str
    cgroup_driver: str
    runtimes: tuple[str, ...]


class NameTaken(BoxdError):
    """A container with this name already exists."""


class Engine:
    """One engine. Call `connect` first and `close` last."""

    def __init__(self, path: Path) -> None:
        """`path` is the engine's socket."""
        self._socket = path
        self._client: aiodocker.Docker | None = None
        self._connector: aiohttp.UnixConnector | None = None

    async def connect(self) -> EngineInfo:
        """Connect to the engine. Raises Unavailable with a remedy if it cannot serve boxes."""
        await self.close()
        _try_socket(self._socket)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT, connect=CONNECT_TIMEOUT)
        # A persistent connection would break the first call after a restart of the engine.
        self._connector = aiohttp.UnixConnector(os.fspath(self._socket), force_close=True)
        self._client = client = aiodocker.Docker(
            "unix://localhost", connector=self._connector, timeout=timeout
        )
        try:
            with self._translated("the engine does not report its version"):
                version = await client.version()
                info = await client.system.info()
            return self._checked(version, info)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections. Containers continue to run."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._connector is not None:
            await self._connector.close()
            self._connector = None

    def _checked(self, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineInfo:
        api = str(version.get("ApiVersion", ""))
        release = str(version.get("Version", "unknown"))
        if _numbers(api) < MIN_API:
            raise Unavailable(
                f"the Docker engine at {self._socket} is {release} with API {api or 'unknown'}; "
                "boxes need API 1.41, which is Docker 20.10 or newer"
            )
        for option in info.get("SecurityOptions") or ():
            kind = str(option).partition("name=")[2].partition(",")[0]
            if kind in _REFUSED_MAPS:
                raise Unavailable(
                    f"the Docker engine at {self._socket} runs {_REFUSED_MAPS[kind]}, which maps "
                    "the owner of the guest agent's files to nobody; use another --docker-socket"
                )
        driver, cgroup_driver = str(info["Driver"]), str(info["CgroupDriver"])
        return EngineInfo(release, api, driver, cgroup_driver, _runtimes(info))

    async def runtimes(self) -> tuple[str, ...]:
        """Return the names of the engine's OCI runtimes now: a reload can change them."""
        with self._translated("the engine does not report its runtimes"):
            return _runtimes(await self._docker.system.info())

    # Containers.

    async def containers(self, label: str) -> list[dict[str, Any]]:
        """Return the engine's summaries of all containers with a label (`name=value`)."""
        with self._translated("containers cannot be listed"):
            containers = await self._docker.containers.list(all=True, filters={"label": [label]})
        return [dict(container._container) for container in containers]

    async def container(self, name: str, *, size: bool = False) -> dict[str, Any] | None:
        """Return the engine's description of a container, or None if it does not exist.

        With `size`, the engine measures the writable layer, which takes as long as a walk through
        its files.
        """
        with self._translated(f"container {name} cannot be inspected"):
            try:
                return await self._docker.containers.container(name).show(size=size)
            except aiodocker.DockerError as error:
                if error.status == _NOT_FOUND:
                    return None
                raise

    async def create(self, name: str, body: dict[str, Any]) -> None:
        """Create a container. Raises NameTaken."""
        with self._translated("the container of the box cannot be created"):
            try:
                await self._docker.containers.create(body, name=name)
            except aiodocker.DockerError as error:
                if error.status == _CONFLICT:
                    raise NameTaken(f"the engine already has a container {name}") from None
                raise

    async def start(self, name: str) -> None:
        """Start a container. No error if it is running."""
        with self._translated("the box does not start"):
            await self._docker.containers.container(name).start()

    async def stop(self, name: str, grace: float) -> None:
        """Stop a container: SIGTERM to init, SIGKILL after `grace` seconds (rounded up).

        No error if it is stopped.
        """
        seconds = math.ceil(grace)
        bound = aiohttp.ClientTimeout(total=TIMEOUT + seconds)
        with self._translated(f"container {name} does not stop"), _missing_is_fine():
            await self._docker.containers.container(name).stop(t=seconds, timeout=bound)

    async def unpause(self, name: str) -> None:
        """Unpause a container."""
        with self._translated(f"container {name} cannot be unpaused"):
            await self._docker.containers.container(name).unpause()

    async def remove(self, name: str) -> None:
        """Kill and remove a container, with the volumes that its image declared."""
        with self._translated(f"container {name} cannot be removed"), _missing_is_fine():
            await self._docker.containers.container(name).delete(force=True, v=True)

    # Images.

    async def image(self, reference: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, or None if the engine does not have it.

        Raises UnknownImage for an invalid image name.
        """
        with self._translated(f"image {reference!r} cannot be inspected"):
            try:
                return dict(await self._docker.images.inspect(reference))
            except aiodocker.DockerError as error:
                if error.status == _NOT_FOUND:
                    return None
                if error.status == _BAD:
                    raise UnknownImage(_invalid_name(reference, error)) from None
                raise

    async def pull(self, reference: str) -> None:
        """Pull an image from its registry. Raises UnknownImage, or Unavailable with its error."""
        failed = f"image {reference!r} is not on this host and cannot be pulled"
        try:
            async with asyncio.timeout(PULL_TIMEOUT):
                await self._docker.images.pull(reference)
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise Unavailable(self._unreachable(error.message)) from error
            if error.status == _BAD:
                raise UnknownImage(_invalid_name(reference, error)) from None
            text = f"{failed}: {error.message.strip()}"
            if error.status == _NOT_FOUND or any(w in error.message for w in _NO_SUCH_IMAGE):
                raise UnknownImage(f"{text}; check name and tag") from None
            raise Unavailable(f"{text}; ask the operator to load it (docker load)") from None
        except TimeoutError:
            raise Unavailable(f"{failed}: it took longer than {PULL_TIMEOUT:.0f} s") from None
        except aiohttp.ClientError as error:
            raise Unavailable(self._unreachable(str(error))) from error

    async def import_root(self, root: Path, repository: str, tag: str, label: str) -> None:
        """Import a directory as an image. File owners stay as the daemon sees them."""
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": f"LABEL {label}"}
        tar = await asyncio.create_subprocess_exec(
            "tar",
            "--create",
            "--file=-",
            "--numeric-owner",
            "--one-file-system",
            "--xattrs",
            "--sort=name",
            f"--directory={root}",
            ".",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
        try:
            with self._translated(f"image {repository}:{tag} cannot be imported"):
                client = self._docker
                answer = await client.session.post(
                    f"{client.docker_host}/{client.api_version}/images/create",
                    params=params,
                    data=_chunks(tar),
                    headers={"Content-Type": "application/x-tar"},
                    timeout=aiohttp.ClientTimeout(total=PULL_TIMEOUT),
                )
                text = await answer.text()
                if answer.status != 200 or '"error"' in text:
                    raise aiodocker.DockerError(answer.status, text.strip())
            if await tar.wait() != 0:
                await self.remove_image(f"{repository}:{tag}")
                raise Unavailable(f"{root} cannot be read completely; build the image again")
        finally:
            kill(tar)
            await tar.wait()

    async def images(self, label: str) -> list[str]:
        """Return the names of images with a label (`name=value`)."""
        with self._translated("images cannot be listed"):
            images = await self._docker.images.list(filters={"label": [label]})
        return [name for image in images for name in image.get("RepoTags") or ()]

    async def remove_image(self, reference: str) -> bool:
        """Remove an image. Return False if a container uses it."""
        with self._translated(f"image {reference} cannot be removed"), _missing_is_fine():
            try:
                await self._docker.images.delete(reference)
            except aiodocker.DockerError as error:
                if error.status == _CONFLICT:
                    return False
                raise
        return True

    # Helpers.

    @property
    def _docker(self) -> aiodocker.Docker:
        if self._client is None:
            raise Unavailable("the backend is not set up")
        return self._client

    @contextmanager
    def _translated(self, failed: str) -> Iterator[None]:
        """Translate errors of the client to errors of the service that begin with `failed`."""
        try:
            yield
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise Unavailable(self._unreachable(error.message)) from error
            raise BoxdError(f"{failed}: {error.message.strip()}") from error
        except TimeoutError as error:
            raise Unavailable(f"{failed}: the Docker engine does not answer in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(self._unreachable(str(error))) from error

    def _unreachable(self, reason: str) -> str:
        return (
            f"the Docker engine at {self._socket} cannot be reached ({reason}); "
            "start it, or set its socket with --docker-socket"
        )


async def ask(path: Path) -> EngineInfo:
    """Return the properties of the engine at a socket. Raises Unavailable as `Engine.connect`."""
    engine = Engine(path)
    try:
        return await engine.connect()
    finally:
        await engine.close()


def _try_socket(path: Path) -> None:
    """Connect to a socket once, because the client's own errors say little about the reason."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            reason = {
                errno.ENOENT: "there is no such socket",
                errno.EACCES: "this user may not use it",
                errno.ECONNREFUSED: "no process listens there",
                errno.ENOTSOCK: "it is not a socket",
            }.get(error.errno or 0, error.strerror or str(error))
            raise Unavailable(
                f"no Docker engine at {path}: {reason}; start the engine, "
                "or set the socket of a running one with --docker-socket"
            ) from None


def _runtimes(info: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(info.get("Runtimes") or {}))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _invalid_name(reference: str, error: aiodocker.DockerError) -> str:
    reason = error.message.rpartition(": ")[2].strip()
    return f"{reference!r} is not a valid image name: {reason}"


@contextmanager
def _missing_is_fine() -> Iterator[None]:
    """Ignore that an object to stop or remove does not exist."""
    try:
        yield
    except aiodocker.DockerError as error:
        if error.status != _NOT_FOUND:
            raise


async def _chunks(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    if process.stdout is None:
        raise RuntimeError("the process has no output pipe")
    while chunk := await process.stdout.read(_TAR_CHUNK):
        yield chunk
