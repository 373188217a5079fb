"""The view of a box: one dataclass and one JSON form for the CLI, HTTP and MCP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from boxd.model.box import PIDS

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from boxd.model.box import Box
    from boxd.model.usage import Usage


@dataclass(frozen=True, slots=True)
class NextAct:
    """The next automatic action on a box. `act` is `removed` or `suspended`."""

    act: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Removal:
    """The automatic removal of a box if nobody uses it until then, and its cause."""

    at: datetime
    why: Literal["deadline", "unused"]


@dataclass(frozen=True, slots=True)
class BoxView:
    """A box as its owner sees it. `age_s` is in seconds; `mem_mb` and `disk_mb` are in MiB.

    `disk_mb` 0: no limit.

    `attached` is the number of attachments that keep the box awake. `why` has the number for each
    reason, including detached shells and a pin. `memory`: the box is suspended with its memory, so
    its processes can resume. `pinned_until` is the wall-clock time when the pin ends. `usage` is
    None before the first measurement. `profile` None: no profile, or unknown. `removal` None: the
    service does not remove the box as things are; the end of a use can change that.
    """

    id: str
    name: str
    workspace: str | None
    ref: str
    image: str
    flavor: str
    state: str
    detail: str
    age_s: float
    cpus: float
    mem_mb: int
    created: datetime
    deadline: datetime | None
    grace: timedelta | None
    attached: int
    why: dict[str, int] = field(default_factory=dict)
    next: NextAct | None = None
    removal: Removal | None = None
    memory: bool = False
    durable: bool = False
    auto_suspend: bool = True
    pinned_until: datetime | None = None
    pin_why: str = ""
    clamped: bool = False
    egress: str = "all"
    disk_mb: int = 0
    pids: int = PIDS
    drive: bool = False
    confidential: bool = False
    usage: Usage | None = None
    profile: str | None = None
    runtime: str = ""
    containers: bool = False
    no_suspend: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of the API and of `--json`. The default workspace is omitted."""
        members: dict[str, Any] = {"id": self.id, "name": self.name}
        if self.workspace is not None:
            members["workspace"] = self.workspace
        members |= {
            "image": self.image,
            "state": self.state,
            "age_s": round(self.age_s, 3),
            "cpus": self.cpus,
            "mem_mb": self.mem_mb,
            "ref": self.ref,
            "flavor": self.flavor,
            "profile": self.profile,
            "detail": self.detail,
            "attached": self.attached,
            "why": self.why,
            "created": self.created.isoformat(),
            "deadline": self.deadline.isoformat() if self.deadline else None,
            "grace_s": self.grace.total_seconds() if self.grace is not None else None,
            "clamped": self.clamped,
            "next": {"act": self.next.act, "at": self.next.at.isoformat()} if self.next else None,
            "removal": (
                {"at": self.removal.at.isoformat(), "why": self.removal.why}
                if self.removal
                else None
            ),
            "memory": self.memory,
            "durable": self.durable,
            "auto_suspend": self.auto_suspend,
            "pinned_until": self.pinned_until.isoformat() if self.pinned_until else None,
            "pin_why": self.pin_why,
            "egress": self.egress,
            "disk_mb": self.disk_mb,
            "pids": self.pids,
            "drive": self.drive,
            "confidential": self.confidential,
            "runtime": self.runtime,
            "containers": self.containers,
            "no_suspend": self.no_suspend,
            "usage": self.usage.to_json() if self.usage else None,
        }
        return members


@dataclass(frozen=True, slots=True)
class Use:
    """The current use of a box. `BoxView` explains the fields."""

    attached: int
    why: dict[str, int]
    pinned_until: datetime | None
    next: NextAct | None
    removal: Removal | None = None
    usage: Usage | None = None
    no_suspend: str = ""


def view_box(box: Box, now: datetime, use: Use) -> BoxView:
    """Return the view of a box at `now`."""
    return BoxView(
        id=box.id,
        name=box.name,
        workspace=box.workspace,
        ref=box.ref,
        image=box.image,
        flavor=box.flavor,
        state=box.state.value,
        detail=box.detail,
        age_s=max(0.0, (now - box.created).total_seconds()),
        cpus=box.cpus,
        mem_mb=box.mem_mb,
        created=box.created,
        deadline=box.deadline,
        grace=box.grace,
        attached=use.attached,
        why=use.why,
        next=use.next,
        removal=use.removal,
        memory=box.memory,
        durable=box.durable,
        auto_suspend=box.auto_suspend,
        pinned_until=use.pinned_until,
        pin_why=box.pin_why if use.pinned_until else "",
        clamped=box.clamped,
        egress=box.egress,
        disk_mb=box.disk_mb,
        pids=box.pids,
        drive=box.drive,
        confidential=box.confidential,
        usage=use.usage,
        profile=box.profile or None,
        runtime=box.runtime,
        containers=box.containers,
        no_suspend=use.no_suspend,
    )
