"""What a box's network namespace needs that is made anew under a box with memory."""

from __future__ import annotations

from boxd.backends.bundle import SYSCTLS
from boxd.backends.run import run


async def set_sysctls(netns: str) -> None:
    """Sets in a namespace what runc sets when a box starts, and not when one is restored."""
    script = "".join(
        f"echo '{value}' > /proc/sys/{name.replace('.', '/')}\n" for name, value in SYSCTLS.items()
    )
    await run("nsenter", f"--net=/run/netns/{netns}", "sh", "-ec", script)


async def lend(netns: str, old: str, own: str) -> None:
    """Lets sockets be restored that are bound to another address than the box now has.

    The old address is the box's own, on its loopback, while processes are brought back.
    """
    if old != own:
        await run("ip", "-n", netns, "addr", "replace", f"{old}/32", "dev", "lo")


async def take_back(netns: str, old: str, own: str) -> None:
    """The opposite of `lend`; also when it was done already.

    What was connected from that address is reset; sockets that listen, or are connected within
    the box by its loopback, live on.
    """
    if old == own or old not in await run("ip", "-n", netns, "-4", "addr", "show", "dev", "lo"):
        return
    await run("ip", "netns", "exec", netns, "ss", "--kill", "--no-header", "src", old)
    await run("ip", "-n", netns, "addr", "del", f"{old}/32", "dev", "lo")
