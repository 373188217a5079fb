"""Collaborators shared by all code that changes boxes: one of each per daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.pending_removals import PendingRemovals
from boxd.boxes.presence.activity import Activity
from boxd.boxes.presence.attachments import Attachments
from boxd.boxes.presence.oom import OomReports
from boxd.boxes.state.box_index import BoxIndex
from boxd.boxes.state.expiry_notifier import ExpiryNotifier
from boxd.boxes.state.feed import Feed
from boxd.boxes.state.locks import Locks
from boxd.boxes.state.repository import BoxRepository
from boxd.boxes.timing.elapsed_time import ElapsedTimeStore
from boxd.boxes.timing.timers import Timers

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.assembly import Assembly
    from boxd.boxes.timing.policy import Policy
    from boxd.clock import HostClock
    from boxd.observation import Observer
    from boxd.store.interface import ControlStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """The objects that the lifecycle classes share.

    `repository` writes box rows to `store`; nothing else in the lifecycle writes them.
    """

    store: ControlStore
    clock: HostClock
    assembly: Assembly
    locks: Locks
    pending_removals: PendingRemovals
    attachments: Attachments
    elapsed_time: ElapsedTimeStore
    activity: Activity
    timers: Timers
    box_index: BoxIndex
    repository: BoxRepository
    feed: Feed
    expiry_notifier: ExpiryNotifier
    oom: OomReports
    observer: Observer

    @classmethod
    def create(
        cls,
        store: ControlStore,
        clock: HostClock,
        assembly: Assembly,
        policy: Policy,
        observer: Observer,
    ) -> Collaborators:
        """Create every collaborator that the caller does not pass in."""
        feed = Feed()
        attachments = Attachments(feed)
        elapsed_time = ElapsedTimeStore(clock)
        activity = Activity(
            clock,
            elapsed_time,
            attachments,
            suspendable=lambda: assembly.backend.capabilities().suspend,
        )
        timers = Timers(clock, facts=activity.facts, policy=policy)
        box_index = BoxIndex()
        return cls(
            store=store,
            clock=clock,
            assembly=assembly,
            locks=Locks(),
            pending_removals=PendingRemovals(),
            attachments=attachments,
            elapsed_time=elapsed_time,
            activity=activity,
            timers=timers,
            box_index=box_index,
            repository=BoxRepository(store, elapsed_time, timers, box_index, feed),
            feed=feed,
            expiry_notifier=ExpiryNotifier(feed, clock),
            oom=OomReports(),
            observer=observer,
        )
