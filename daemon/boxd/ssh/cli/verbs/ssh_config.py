"""`ssh-config`: what to put into ~/.ssh/config, so that programs reach boxes by plain names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BadRequest
from boxd.names.words import shown
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Door, Reply, workspace_option

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from boxd.operations import BoxView

SUFFIX = "box"
"""Last part of each alias. Names of boxes have no dot, so none is another one's."""
ACCOUNT = "cli"
JUMP = "jump"

_KEPT_ALIVE = (
    ("ServerAliveInterval", "15"),
    ("ServerAliveCountMax", "4"),
    # 40 % less work at the service than with what clients prefer.
    ("Ciphers", "^aes128-gcm@openssh.com"),
)
_SHARED = (
    # Editors and scripts open a connection for each command.
    ("ControlMaster", "auto"),
    ("ControlPath", f"~/.ssh/{SUFFIX}-%C"),
    ("ControlPersist", "10m"),
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("-i", "--identity", metavar="FILE")
    parser.add_argument("--no-master", action="store_true")
    parser.add_argument("--known-hosts", action="store_true")
    parser.add_argument("ref", nargs="*")


async def _run(call: Call) -> Reply:
    args = call.args
    ops, principal = call.operations, call.principal
    if args.ref:
        boxes = [await ops.boxes.inspect(principal, ref, args.ws) for ref in args.ref]
    else:
        boxes = await ops.boxes.list_boxes(principal, args.ws, everywhere=args.ws is None)
    known = f"{_host_key_name(call.door)} {' '.join(call.door.host_key.split()[:2])}\n"
    common = _common(args.identity, shared=not args.no_master)
    blocks = _blocks(call.door, boxes, common, whole=not args.ref)
    text = _head(call.door) + "".join(f"\n{block}" for block in blocks)
    hosts = [{"host": alias(box), "box": box.ref, "id": box.id} for box in boxes]
    document = {"hosts": hosts, "config": text, "known_hosts": known}
    return Reply(document, known if args.known_hosts else text)


def alias(box: BoxView) -> str:
    """The plain name of a box in the client's configuration: `web.box`, `web.ws1.box`."""
    words = (box.name, SUFFIX) if box.workspace is None else (box.name, box.workspace, SUFFIX)
    return ".".join(words)


def _blocks(
    door: Door, boxes: Sequence[BoxView], common: Sequence[tuple[str, str]], *, whole: bool
) -> list[str]:
    """The service's own users first; the relay only where a box needs it."""
    found = []
    if whole:
        found.append(_block(f"{ACCOUNT}.{SUFFIX}", _through_door(door, ACCOUNT), common))
    if any(box.confidential for box in boxes):
        found.append(_block(f"{JUMP}.{SUFFIX}", _through_door(door, JUMP), common))
    for box in boxes:
        place = _through_relay(box) if box.confidential else _through_door(door, box.ref)
        found.append(_block(alias(box), place, common))
    return found


def _through_door(door: Door, user: str) -> list[tuple[str, str]]:
    return [
        ("HostName", door.host),
        ("Port", str(door.port)),
        ("User", user),
        ("HostKeyAlias", _host_key_name(door)),
    ]


def _through_relay(box: BoxView) -> list[tuple[str, str]]:
    """A confidential box has a host key of its own, which another box of its name has not."""
    return [
        ("HostName", box.ref),
        ("User", "root"),
        ("ProxyJump", f"{JUMP}.{SUFFIX}"),
        ("HostKeyAlias", f"{SUFFIX}-{box.id[:SHORT_ID]}"),
    ]


def _common(identity: str | None, *, shared: bool) -> list[tuple[str, str]]:
    """What all blocks have. The first key that a client offers is the account."""
    file = [] if identity is None else [("IdentityFile", _quoted(identity))]
    return [*file, ("IdentitiesOnly", "yes"), *_KEPT_ALIVE, *(_SHARED if shared else ())]


def _quoted(path: str) -> str:
    if not path or not path.isprintable() or '"' in path or "\\" in path:
        raise BadRequest(f"the name of the identity file {shown(path)} cannot stand in ssh_config")
    return f'"{path}"' if " " in path else path


def _block(host: str, place: Sequence[tuple[str, str]], common: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"    {key} {value}\n" for key, value in (*place, *common))
    return f"Host {host}\n{lines}"


def _host_key_name(door: Door) -> str:
    """As OpenSSH itself names the server in known_hosts, so that it asks no second time."""
    return door.host if door.port == 22 else f"[{door.host}]:{door.port}"


def _head(door: Door) -> str:
    return (
        f"# Your boxes at {door.host} port {door.port}, for ~/.ssh/config. "
        f"For scp, rsync, sshfs and editors (VS Code) too.\n"
        f"# The server's key: {door.ssh('cli', 'ssh-config --known-hosts')} >> ~/.ssh/known_hosts\n"
        "# A key that is no default file of your client: ssh-config -i ~/.ssh/KEY\n"
        "# Clients on Windows share no connections: ssh-config --no-master\n"
    )


COMMANDS = (
    Command(
        ("ssh-config",),
        "print blocks for ~/.ssh/config: then ssh web.box, also for editors",
        "ssh-config >> ~/.ssh/config",
        _run,
        _arguments,
    ),
)
