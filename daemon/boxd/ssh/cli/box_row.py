"""How a box is shown: a row of `ls` and the JSON form with the place to connect to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.ssh.cli.command import SHORT_ID
from boxd.ssh.cli.table import moment, remaining, size, span, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.operations import BoxView
    from boxd.ssh.cli.command import Call

COLUMNS = ("NAME", "ID", "STATE", "ATTACHED", "IMAGE", "FLAVOR", "AGE", "DEADLINE", "NEXT")
_USAGE = ("CPU %", "CPU s", "MEM USED", "DISK USED", "PIDS", "RECEIVED", "SENT")
_WIDE = ("CPUS", "MEM MiB", *_USAGE, "WHY", "SSH", "PREVIEW", "DETAIL")


def boxes_table(call: Call, boxes: Sequence[BoxView], *, wide: bool = False) -> str:
    """The table of `ls`. Details have a column where a box has one."""
    if wide:
        return table(COLUMNS + _WIDE, [box_row(call, box) + _wide(call, box) for box in boxes])
    if any(box.detail for box in boxes):
        return table((*COLUMNS, "DETAIL"), [(*box_row(call, box), box.detail) for box in boxes])
    return table(COLUMNS, [box_row(call, box) for box in boxes])


def box_row(call: Call, box: BoxView) -> tuple[object, ...]:
    """One value for each of COLUMNS."""
    return (
        box.ref,
        box.id[:SHORT_ID],
        box.state,
        box.attached,
        box.image,
        box.flavor,
        span(box.age_s),
        deadline(box),
        next_act(call, box),
    )


def box_json(call: Call, box: BoxView) -> dict[str, Any]:
    """The one JSON form of a box, and where `ssh` and browsers reach it."""
    return box.to_json() | {"ssh_dest": way_in(call, box), "preview": preview(call, box)}


def way_in(call: Call, box: BoxView) -> str:
    """The command that leads into it."""
    return call.door.box(box.ref, confidential=box.confidential)


def preview(call: Call, box: BoxView) -> str | None:
    """The host of its ports, by its id, so that it is the same for all who may see it."""
    return None if box.confidential else call.door.preview(box.id)


def why(box: BoxView) -> str | None:
    """Who holds the box awake: `2 shell, 1 sftp`."""
    return ", ".join(f"{count} {reason}" for reason, count in box.why.items()) or None


def deadline(box: BoxView) -> str | None:
    """When the box ends at the latest; `(max)`: a later moment was asked for."""
    when = moment(box.deadline)
    return f"{when} (max)" if when and box.clamped else when


def next_act(call: Call, box: BoxView) -> str | None:
    """What happens next by itself, and when."""
    return None if box.next is None else f"{box.next.act} {remaining(box.next.at, call.now)}"


def pinned(box: BoxView) -> str | None:
    """Until when a box is kept awake on purpose, and what for."""
    when = moment(box.pinned_until)
    return f"{when} ({box.pin_why})" if when and box.pin_why else when


def percent(share: float | None) -> int | None:
    """A share of one CPU in percent."""
    return None if share is None else round(100 * share)


def usage_pairs(box: BoxView) -> list[tuple[str, object]]:
    """The lines of `info` about what the box uses."""
    used = box.usage
    if used is None:
        return [("used", None)]
    share = percent(used.cpu_share)
    now = "" if share is None else f", {share} % of one lately"
    return [
        ("cpu used", f"{used.cpu_s:.1f} s{now}"),
        ("memory used", size(used.memory_bytes)),
        ("disk used", size(used.disk_bytes)),
        ("saved memory", size(used.saved_memory_bytes)),
        ("processes", used.pids),
        ("received", size(used.net_rx_bytes)),
        ("sent", size(used.net_tx_bytes)),
        ("killed, out of memory", used.oom_kills),
    ]


def _wide(call: Call, box: BoxView) -> tuple[object, ...]:
    ways = (way_in(call, box), preview(call, box))
    return box.cpus, box.mem_mb, *_usage(box), why(box), *ways, box.detail


def _usage(box: BoxView) -> tuple[object, ...]:
    """One value for each of _USAGE, as it was measured last."""
    used = box.usage
    if used is None:
        return (None,) * len(_USAGE)
    return (
        percent(used.cpu_share),
        round(used.cpu_s, 1),
        size(used.memory_bytes),
        size(used.disk_bytes),
        used.pids,
        size(used.net_rx_bytes),
        size(used.net_tx_bytes),
    )
