"""The statements that a metadata connection prepares: one call of one SQL function each."""

from __future__ import annotations


def _call(function: str, count: int) -> str:
    """Return `SELECT * FROM wrkfs.function($1, ... $count)`."""
    parameters = ", ".join(f"${n}" for n in range(1, count + 1))
    return f"SELECT * FROM wrkfs.{function}({parameters})"  # noqa: S608 fixed names only


OPERATION = 4
"""Number of leading parameters of every mutating function: session, epoch, slot, op_seq."""

STATEMENTS: dict[str, str] = {
    "lookup": _call("lookup", 2),
    "find": _call("find", 2),
    "readdir": _call("readdir", 3),
    "read_tree": _call("read_tree", 10),
    "parent": _call("parent", 1),
    "getattr": _call("getattr", 1),
    "stat": _call("stat", 1),
    "readlink": _call("readlink", 1),
    "getxattr": _call("getxattr", 2),
    "listxattr": _call("listxattr", 1),
    "file_map": _call("file_map", 1),
    "statfs": _call("statfs", 0),
    "create": _call("create", OPERATION + 8),
    "make": _call("make", OPERATION + 9),
    "link": _call("link", OPERATION + 4),
    "remove": _call("remove", OPERATION + 5),
    "purge": _call("purge", OPERATION + 2),
    "rename": _call("rename", OPERATION + 6),
    "publish": _call("publish", OPERATION + 7),
    "open": _call("open", OPERATION + 2),
    "sustain_all": _call("sustain_all", OPERATION + 1),
    "release": _call("release", OPERATION + 1),
    "create_unlinked": _call("create_unlinked", OPERATION + 4),
    "commit": _call("commit", OPERATION + 9),
    "allocate": _call("allocate", OPERATION + 5),
    "copy_range": _call("copy_range", OPERATION + 5),
    "sync": _call("sync", OPERATION),
    "setattr": _call("setattr", OPERATION + 9),
    "touch": _call("touch", 4),
    "setxattr": _call("setxattr", OPERATION + 4),
    "reclaim": _call("reclaim", OPERATION + 2),
    "reserve": _call("reserve", 4),
    "register": _call("register", 7),
    "survey": _call("survey", 4),
    "processes": _call("processes", 2),
    "claim": _call("claim", 3),
    "take_lease": _call("take_lease", 4),
    "delegate": _call("delegate", 3),
    "recall_delegations": _call("recall_delegations", 3),
    "fence_holders": _call("fence_holders", 1),
    "reserve_room": _call("reserve_room", 4),
    "apply": _call("apply", OPERATION + 39),
    "give_back": _call("give_back", 3),
    "set_lock": _call("set_lock", OPERATION + 9),
    "cancel_lock": _call("cancel_lock", OPERATION + 1),
    "test_lock": _call("test_lock", 7),
    "return_locks": _call("return_locks", OPERATION + 7),
    "restore_locks": _call("restore_locks", 9),
    "list_locks": _call("list_locks", 1),
    "claim_upkeep": _call("claim_upkeep", 3),
    "garbage": _call("garbage", 2),
    "forget_slices": _call("forget_slices", 1),
    "give_up": _call("give_up", 6),
    "drop_ranges": _call("drop_ranges", 1),
    "adopt_orphans": _call("adopt_orphans", 3),
    "compact": _call("compact", OPERATION + 11),
    "ragged": _call("ragged", 3),
    "purge_trash": _call("purge_trash", 2),
    "trash_excess": _call("trash_excess", 2),
    "thin_trash": _call("thin_trash", 2),
    "thin_links": _call("thin_links", 3),
    "list_trash": _call("list_trash", 5),
    "list_trash_back": _call("list_trash_back", 5),
    "place": _call("place", 1),
    "restore": _call("restore", OPERATION + 6),
    "clone": _call("clone", OPERATION + 5),
    "create_snapshot": _call("create_snapshot", OPERATION + 5),
    "remove_snapshot": _call("remove_snapshot", OPERATION + 1),
    "list_snapshots": _call("list_snapshots", 1),
    "heartbeat": _call("heartbeat", 4),
    "fence": _call("fence", 2),
    "held": _call("held", 1),
    "reap": _call("reap", 2),
}

SERVER_SETTINGS = {
    "application_name": "wrkfs",
    # Functions whose effect must survive a crash turn this on for their own transaction.
    "synchronous_commit": "off",
    # Every statement reads by index, even while statistics say that a table is tiny. The server
    # caches a plan of that time, and the table may grow by 10^5 rows before the next analyze.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
