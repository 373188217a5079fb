"""The Docker Engine, reached over its socket: containers and images, with errors for people.

Every answer is awaited for a bounded time. What the engine refuses is raised with its own words;
an engine that is away is Unavailable with what to do about it.
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

MIN_API = (1, 41)
"""Of Docker 20.10: the first with cgroup namespaces of containers."""
TIMEOUT = 60.0
"""Seconds for one answer."""
CONNECT_TIMEOUT = 5.0
PULL_TIMEOUT = 900.0
"""Seconds for all of an image."""
_NOT_FOUND, _CONFLICT, _BAD = 404, 409, 400
_UNREACHABLE = 900
"""What aiodocker calls a connection that was refused."""
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "does not exist")
"""What registries answer; the engine passes it on as an error of its own."""
_TAR_CHUNK = 1 << 20
_REFUSED_MAPS = {"userns": "userns-remap", "rootless": "rootless"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself. `cgroup_driver` is `cgroupfs` or `systemd`."""

    version: str
    api: str
    storage_driver: str
    cgroup_driver: str


class NameTaken(BoxdError):
    """A container of that name is there already."""


class Engine:
    """One engine. `connect` first, `close` last."""

    def __init__(self, path: Path) -> None:
        """`path` is the engine's socket."""
        self._socket = path
        self._client: aiodocker.Docker | None = None
        self._connector: aiohttp.UnixConnector | None = None

    async def connect(self) -> EngineInfo:
        """Reaches the engine. Raises Unavailable with a remedy when it cannot serve boxes."""
        await self.close()
        _try_socket(self._socket)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT, connect=CONNECT_TIMEOUT)
        # A kept connection would break the first call after the engine was started anew.
        self._connector = aiohttp.UnixConnector(os.fspath(self._socket), force_close=True)
        self._client = client = aiodocker.Docker(
            "unix://localhost", connector=self._connector, timeout=timeout
        )
        try:
            with self._told("it does not tell its version"):
                version = await client.version()
                info = await client.system.info()
            return self._checked(version, info)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Lets go of the connections; containers go on."""
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
                    f"the Docker engine at {self._socket} runs {_REFUSED_MAPS[kind]}, under which "
                    "the files of the guest agent are nobody's; give --docker-socket of another one"
                )
        return EngineInfo(release, api, str(info["Driver"]), str(info["CgroupDriver"]))

    # Containers.

    async def containers(self, label: str) -> list[dict[str, Any]]:
        """Every container with a label (`name=value`), running or not: the engine's summaries."""
        with self._told("containers cannot be listed"):
            found = await self._docker.containers.list(all=True, filters={"label": [label]})
        return [dict(one._container) for one in found]

    async def container(self, name: str, *, size: bool = False) -> dict[str, Any] | None:
        """What the engine knows of a container; None when there is none.

        `size` has its writable layer measured, which takes as long as walking over it.
        """
        with self._told(f"container {name} cannot be looked at"):
            try:
                return await self._docker.containers.container(name).show(size=size)
            except aiodocker.DockerError as error:
                if error.status == _NOT_FOUND:
                    return None
                raise

    async def create(self, name: str, body: dict[str, Any]) -> None:
        """Makes a container. Raises NameTaken."""
        with self._told("the container of the box cannot be made"):
            try:
                await self._docker.containers.create(body, name=name)
            except aiodocker.DockerError as error:
                if error.status == _CONFLICT:
                    raise NameTaken(f"the name {name} is taken in the engine") from None
                raise

    async def start(self, name: str) -> None:
        """Starts a container; no error when it runs."""
        with self._told("the box does not start"):
            await self._docker.containers.container(name).start()

    async def stop(self, name: str, grace: float) -> None:
        """SIGTERM for its init, SIGKILL after `grace` seconds (rounded up). No error if stopped."""
        seconds = math.ceil(grace)
        bound = aiohttp.ClientTimeout(total=TIMEOUT + seconds)
        with self._told(f"container {name} does not stop"), _missing_is_fine():
            await self._docker.containers.container(name).stop(t=seconds, timeout=bound)

    async def unpause(self, name: str) -> None:
        """Has a paused container run on."""
        with self._told(f"container {name} does not go on"):
            await self._docker.containers.container(name).unpause()

    async def remove(self, name: str) -> None:
        """Ends and removes a container with the volumes that its image asked for."""
        with self._told(f"container {name} cannot be removed"), _missing_is_fine():
            await self._docker.containers.container(name).delete(force=True, v=True)

    # Images.

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows of an image that it has; None when it has none of that name.

        Raises UnknownImage for what cannot be the name of an image.
        """
        with self._told(f"image {reference!r} cannot be looked at"):
            try:
                return dict(await self._docker.images.inspect(reference))
            except aiodocker.DockerError as error:
                if error.status == _NOT_FOUND:
                    return None
                if error.status == _BAD:
                    raise UnknownImage(_no_name(reference, error)) from None
                raise

    async def pull(self, reference: str) -> None:
        """Fetches an image from its registry. UnknownImage; Unavailable with its answer."""
        failed = f"image {reference!r} is not on this host and cannot be pulled"
        try:
            async with asyncio.timeout(PULL_TIMEOUT):
                await self._docker.images.pull(reference)
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise Unavailable(self._away(error.message)) from error
            if error.status == _BAD:
                raise UnknownImage(_no_name(reference, error)) from None
            said = f"{failed}: {error.message.strip()}"
            if error.status == _NOT_FOUND or any(w in error.message for w in _NO_SUCH_IMAGE):
                raise UnknownImage(f"{said}; check name and tag") from None
            raise Unavailable(f"{said}; ask the operator, who can load it by hand") from None
        except TimeoutError:
            raise Unavailable(f"{failed}: it took longer than {PULL_TIMEOUT:.0f} s") from None
        except aiohttp.ClientError as error:
            raise Unavailable(self._away(str(error))) from error

    async def import_root(self, root: Path, repository: str, tag: str, label: str) -> None:
        """Makes an image of a directory, which is read as its files' owner sees them."""
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": f"LABEL {label}"}
        tar = await asyncio.create_subprocess_exec(
            *("tar", "--create", "--file=-", "--numeric-owner", "--one-file-system", "--xattrs"),
            *("--sort=name", f"--directory={root}", "."),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
        try:
            with self._told(f"image {repository}:{tag} cannot be imported"):
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
                raise Unavailable(f"{root} cannot be read as a whole; build the image anew")
        finally:
            if tar.returncode is None:
                tar.kill()
                await tar.wait()

    async def images(self, label: str) -> list[str]:
        """Names of the images with a label (`name=value`)."""
        with self._told("images cannot be listed"):
            found = await self._docker.images.list(filters={"label": [label]})
        return [name for one in found for name in one.get("RepoTags") or ()]

    async def remove_image(self, reference: str) -> bool:
        """Removes an image; False when a container stands on it."""
        with self._told(f"image {reference} cannot be removed"), _missing_is_fine():
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
    def _told(self, failed: str) -> Iterator[None]:
        """Raises what goes wrong as an error of the service that begins with `failed`."""
        try:
            yield
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise Unavailable(self._away(error.message)) from error
            raise BoxdError(f"{failed}: {error.message.strip()}") from error
        except TimeoutError as error:
            raise Unavailable(f"{failed}: the Docker engine does not answer in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(self._away(str(error))) from error

    def _away(self, said: str) -> str:
        return (
            f"the Docker engine at {self._socket} cannot be reached ({said}); "
            "start it, or give its socket with --docker-socket"
        )


async def ask(path: Path) -> EngineInfo:
    """What the engine at a socket says of itself. Raises Unavailable as `Engine.connect` does."""
    engine = Engine(path)
    try:
        return await engine.connect()
    finally:
        await engine.close()


def _try_socket(path: Path) -> None:
    """Says precisely why nobody answers at a socket, where the client would say little."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            what = {
                errno.ENOENT: "there is no such socket",
                errno.EACCES: "this user may not use it",
                errno.ECONNREFUSED: "nobody listens there",
                errno.ENOTSOCK: "it is no socket",
            }.get(error.errno or 0, error.strerror or str(error))
            raise Unavailable(
                f"no Docker engine at {path}: {what}; start the engine, "
                "or give the socket of a running one with --docker-socket"
            ) from None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _no_name(reference: str, error: aiodocker.DockerError) -> str:
    return f"{reference!r} names no image: {error.message.rpartition(': ')[2].strip()}"


@contextmanager
def _missing_is_fine() -> Iterator[None]:
    """What is gone need not be removed."""
    try:
        yield
    except aiodocker.DockerError as error:
        if error.status != _NOT_FOUND:
            raise


async def _chunks(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    if process.stdout is None:
        raise RuntimeError("made without a pipe")
    while chunk := await process.stdout.read(_TAR_CHUNK):
        yield chunk
