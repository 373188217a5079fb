"""The text and JSON forms of a box: a row of `ls`, lines of `info`, and how to reach the box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.ssh.cli.command import SHORT_ID
from boxd.ssh.cli.table import format_size, format_span, format_time, table, time_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.operations import BoxView
    from boxd.ssh.cli.command import Call

COLUMNS = (
    "NAME",
    "ID",
    "STATE",
    "ATTACHED",
    "IMAGE",
    "FLAVOR",
    "AGE",
    "DEADLINE",
    "NEXT",
    "REMOVAL",
)
_USAGE = ("CPU %", "CPU s", "MEM USED", "DISK USED", "PIDS", "RECEIVED", "SENT")
_WIDE = ("CPUS", "MEM MiB", *_USAGE, "WHY", "SSH", "PREVIEW", "DETAIL")


def boxes_table(call: Call, boxes: Sequence[BoxView], *, wide: bool = False) -> str:
    """Return the table of `ls`. It has a DETAIL column if a box has a detail."""
    if wide:
        return table(COLUMNS + _WIDE, [box_row(call, box) + _wide(call, box) for box in boxes])
    if any(box.detail for box in boxes):
        return table((*COLUMNS, "DETAIL"), [(*box_row(call, box), box.detail) for box in boxes])
    return table(COLUMNS, [box_row(call, box) for box in boxes])


def box_row(call: Call, box: BoxView) -> tuple[object, ...]:
    """Return one value for each of COLUMNS."""
    return (
        box.ref,
        box.id[:SHORT_ID],
        box.state,
        box.attached,
        box.image,
        box.flavor,
        format_span(box.age_s),
        deadline(box),
        next_event(call, box),
        removal(call, box),
    )


def box_json(call: Call, box: BoxView) -> dict[str, Any]:
    """Return the JSON form of a box, with its ssh command and its preview host."""
    return box.to_json() | {"ssh_dest": ssh_command(call, box), "preview": preview_host(call, box)}


def ssh_command(call: Call, box: BoxView) -> str:
    """Return the command line that opens a shell in the box."""
    return call.endpoint.box_command(box.ref, confidential=box.confidential)


def preview_host(call: Call, box: BoxView) -> str | None:
    """Return the host of the box's ports; it has the id, so it is the same for all users."""
    return None if box.confidential else call.endpoint.preview_host(box.id)


def attachment_counts(box: BoxView) -> str | None:
    """Return what keeps the box awake: `2 shell, 1 sftp`."""
    return ", ".join(f"{count} {reason}" for reason, count in box.why.items()) or None


def deadline(box: BoxView) -> str | None:
    """Return the latest end of the box; `(max)` marks a deadline that was shortened."""
    when = format_time(box.deadline)
    return f"{when} (max)" if when and box.clamped else when


def next_event(call: Call, box: BoxView) -> str | None:
    """Return the next automatic change of the box, and the time until then."""
    return None if box.next is None else f"{box.next.act} {time_until(box.next.at, call.now)}"


def removal(call: Call, box: BoxView) -> str | None:
    """Return the time until the automatic removal of the box if nobody uses it until then."""
    if box.removal is not None:
        return time_until(box.removal.at, call.now)
    return "durable" if box.durable else None


def pin_end(box: BoxView) -> str | None:
    """Return the end of the box's pin, and its reason."""
    when = format_time(box.pinned_until)
    return f"{when} ({box.pin_why})" if when and box.pin_why else when


def percent(share: float | None) -> int | None:
    """Return a share of one CPU in percent."""
    return None if share is None else round(100 * share)


def usage_pairs(box: BoxView) -> list[tuple[str, object]]:
    """Return the lines of `info` about the resources that the box uses."""
    usage = box.usage
    if usage is None:
        return [("used", None)]
    share = percent(usage.cpu_share)
    recent = "" if share is None else f", recently {share} % of one CPU"
    return [
        ("cpu used", f"{usage.cpu_s:.1f} s{recent}"),
        ("memory used", format_size(usage.memory_bytes)),
        ("disk used", format_size(usage.disk_bytes)),
        ("saved memory", format_size(usage.saved_memory_bytes)),
        ("processes", usage.pids),
        ("received", format_size(usage.net_rx_bytes)),
        ("sent", format_size(usage.net_tx_bytes)),
        ("killed, out of memory", usage.oom_kills),
    ]


def _wide(call: Call, box: BoxView) -> tuple[object, ...]:
    """Return one value for each of _WIDE."""
    return (
        box.cpus,
        box.mem_mb,
        *_usage(box),
        attachment_counts(box),
        ssh_command(call, box),
        preview_host(call, box),
        box.detail,
    )


def _usage(box: BoxView) -> tuple[object, ...]:
    """Return one value for each of _USAGE, from the last measurement."""
    usage = box.usage
    if usage is None:
        return (None,) * len(_USAGE)
    return (
        percent(usage.cpu_share),
        round(usage.cpu_s, 1),
        format_size(usage.memory_bytes),
        format_size(usage.disk_bytes),
        usage.pids,
        format_size(usage.net_rx_bytes),
        format_size(usage.net_tx_bytes),
    )
