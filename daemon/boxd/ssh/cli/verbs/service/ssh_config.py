"""`ssh-config`: entries for ~/.ssh/config, so that programs reach boxes by plain names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BadRequest
from boxd.names.words import shown
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Endpoint, Reply, workspace_option

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from boxd.operations import BoxView

SUFFIX = "box"
"""Last part of each alias. Names of boxes have no dot, so aliases are unique."""
ACCOUNT = "cli"
JUMP = "jump"

_CONNECTION_OPTIONS = (
    ("ServerAliveInterval", "15"),
    ("ServerAliveCountMax", "4"),
    # It takes 40 % less CPU of the service than the default cipher of clients.
    ("Ciphers", "^aes128-gcm@openssh.com"),
)
_MULTIPLEXING = (
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
    known_hosts = (
        f"{_host_key_name(call.endpoint)} {' '.join(call.endpoint.host_key.split()[:2])}\n"
    )
    common = _common(args.identity, shared=not args.no_master)
    blocks = _blocks(call.endpoint, boxes, common, whole=not args.ref)
    text = _head(call.endpoint) + "".join(f"\n{block}" for block in blocks)
    hosts = [{"host": alias(box), "box": box.ref, "id": box.id} for box in boxes]
    document = {"hosts": hosts, "config": text, "known_hosts": known_hosts}
    return Reply(document, known_hosts if args.known_hosts else text)


def alias(box: BoxView) -> str:
    """Return the alias of a box in the client's configuration: `web.box`, `web.ws1.box`."""
    words = (box.name, SUFFIX) if box.workspace is None else (box.name, box.workspace, SUFFIX)
    return ".".join(words)


def _blocks(
    endpoint: Endpoint, boxes: Sequence[BoxView], common: Sequence[tuple[str, str]], *, whole: bool
) -> list[str]:
    """Return the blocks: user `cli`, the jump host if a box needs it, and the boxes.

    `whole`: include the block of user `cli`.
    """
    blocks = []
    if whole:
        blocks.append(_block(f"{ACCOUNT}.{SUFFIX}", _direct_options(endpoint, ACCOUNT), common))
    if any(box.confidential for box in boxes):
        blocks.append(_block(f"{JUMP}.{SUFFIX}", _direct_options(endpoint, JUMP), common))
    for box in boxes:
        options = _jump_options(box) if box.confidential else _direct_options(endpoint, box.ref)
        blocks.append(_block(alias(box), options, common))
    return blocks


def _direct_options(endpoint: Endpoint, user: str) -> list[tuple[str, str]]:
    return [
        ("HostName", endpoint.host),
        ("Port", str(endpoint.port)),
        ("User", user),
        ("HostKeyAlias", _host_key_name(endpoint)),
    ]


def _jump_options(box: BoxView) -> list[tuple[str, str]]:
    """Return the options of a confidential box.

    Its host key differs from that of an earlier box with the same name.
    """
    return [
        ("HostName", box.ref),
        ("User", "root"),
        ("ProxyJump", f"{JUMP}.{SUFFIX}"),
        ("HostKeyAlias", f"{SUFFIX}-{box.id[:SHORT_ID]}"),
    ]


def _common(identity: str | None, *, shared: bool) -> list[tuple[str, str]]:
    """Return the options of all blocks. The first key that a client offers is the account."""
    file = [] if identity is None else [("IdentityFile", _quoted(identity))]
    return [
        *file,
        ("IdentitiesOnly", "yes"),
        *_CONNECTION_OPTIONS,
        *(_MULTIPLEXING if shared else ()),
    ]


def _quoted(path: str) -> str:
    if not path or not path.isprintable() or '"' in path or "\\" in path:
        raise BadRequest(
            f"the name of the identity file {shown(path)} cannot be in ssh_config; rename it"
        )
    return f'"{path}"' if " " in path else path


def _block(host: str, options: Sequence[tuple[str, str]], common: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"    {key} {value}\n" for key, value in (*options, *common))
    return f"Host {host}\n{lines}"


def _host_key_name(endpoint: Endpoint) -> str:
    """Return OpenSSH's own name for the server in known_hosts, so that it asks only once."""
    return endpoint.host if endpoint.port == 22 else f"[{endpoint.host}]:{endpoint.port}"


def _head(endpoint: Endpoint) -> str:
    key_command = endpoint.ssh_command("cli", "ssh-config --known-hosts")
    return (
        f"# Your boxes at {endpoint.host} port {endpoint.port}, for ~/.ssh/config. "
        f"Also for scp, rsync, sshfs and editors (VS Code).\n"
        f"# The server's key: {key_command} >> ~/.ssh/known_hosts\n"
        "# If your key is not in a default file of ssh: ssh-config -i ~/.ssh/KEY\n"
        "# On Windows, ssh cannot share connections: ssh-config --no-master\n"
    )


COMMANDS = (
    Command(
        ("ssh-config",),
        "print entries for ~/.ssh/config, so that ssh and editors reach boxes as web.box",
        "ssh-config >> ~/.ssh/config",
        _run,
        _arguments,
    ),
)
