"""`box new|ls|rm|suspend|resume|fork`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from boxd_client.cli.output import format_span, note, print_json, print_table
from boxd_client.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from boxd_client._sync.box import Box
    from boxd_client.cli.context import Context
    from boxd_client.models import BoxInfo

COLUMNS = ("NAME", "STATE", "IMAGE", "FLAVOR", "AGE", "REMOVAL")


def new(context: Context) -> int:
    """Create a box, or wake the one of this name."""
    args = context.args
    box = context.client.boxes.create(
        args.name,
        image=args.image,
        flavor=args.flavor,
        deadline=args.deadline,
        lifetime=args.lifetime,
        durable=args.durable or None,
        fresh=args.fresh or None,
    )
    return _show(context, [box.info()], single=True)


def ls(context: Context) -> int:
    """List boxes."""
    return _show(context, context.client.boxes.list(context.args.workspace))


def rm(context: Context) -> int:
    """Remove boxes."""

    def remove(box: Box) -> object:
        box.remove(force=context.args.force)
        return {"box": box.ref, "state": "removed"}

    return _each(context, remove)


def suspend(context: Context) -> int:
    """Suspend boxes."""
    return _each(context, lambda box: {"box": box.ref, "state": box.suspend()})


def resume(context: Context) -> int:
    """Wake boxes."""
    return _each(context, lambda box: {"box": box.ref, "state": box.resume()})


def fork(context: Context) -> int:
    """Copy a running box."""
    copy = context.box().fork(context.args.copy)
    return _show(context, [copy.info()], single=True)


def _each(context: Context, act: Callable[[Box], object]) -> int:
    """Do something with each box of the arguments; the status is 1 if one of them fails."""
    results: list[object] = []
    status = 0
    for ref in context.args.boxes:
        try:
            result = act(context.client.box(ref))
        except BoxError as error:
            note(f"box: {ref}: {error}")
            status = 1
            continue
        results.append(result)
        if not context.json and isinstance(result, dict):
            sys.stdout.write(f"{result['box']} {result['state']}\n")
    if context.json:
        print_json(results)
    return status


def _show(context: Context, boxes: Sequence[BoxInfo], *, single: bool = False) -> int:
    if context.json:
        print_json(boxes[0].raw if single else [box.raw for box in boxes])
        return 0
    rows = [
        (
            box.ref,
            box.state,
            box.image,
            box.flavor,
            format_span(box.age_s),
            box.removal.at.strftime("%Y-%m-%d %H:%M UTC") if box.removal else "-",
        )
        for box in boxes
    ]
    print_table(COLUMNS, rows)
    return 0
