"""Settings of the embedded PostgreSQL, one line each with its reason. Pure."""

from __future__ import annotations

DATABASE = "boxd"
"""The one database of the cluster besides PostgreSQL's own three."""
SUPERUSER = "boxd"
"""The bootstrap role, used by the daemon alone."""

SETTINGS: dict[str, tuple[str, str]] = {
    "listen_addresses": ("''", "no TCP listener at all; clients come through the socket directory"),
    "unix_socket_permissions": ("0700", "the directory is 0700 too"),
    "max_connections": ("1000", "100 volumes with a mount and an HTTP handle of four each"),
    "superuser_reserved_connections": ("20", "the daemon gets in when volumes hold all others"),
    "authentication_timeout": ("10s", "a client that does not log in holds a slot"),
    "password_encryption": ("'scram-sha-256'", "the only way to log in"),
    "fsync": ("on", "an acknowledged write survives"),
    "full_page_writes": ("on", "a page torn by a crash is repaired"),
    "synchronous_commit": ("on", "functions that may answer earlier say so themselves"),
    "data_sync_retry": ("off", "a failed fsync is a crash and a recovery, never a lost write"),
    "wal_writer_delay": ("10ms", "pure metadata reaches the disk at once even without fsync"),
    "wal_level": ("replica", "a base backup stays possible"),
    "max_wal_senders": ("0", "nobody replicates"),
    "max_replication_slots": ("0", "nobody replicates"),
    "max_logical_replication_workers": ("0", "nobody replicates"),
    "max_prepared_transactions": ("0", "no transaction outlives its connection"),
    "max_locks_per_transaction": ("256", "one role's locks leave room for all others"),
    "max_worker_processes": ("0", "no parallel queries: their shared memory has no bound"),
    "temp_file_limit": ("1GB", "per process; only a superuser can raise it"),
    "idle_in_transaction_session_timeout": ("30s", "an idle transaction holds back vacuum"),
    "shared_buffers": ("256MB", "metadata of about a million files"),
    "max_wal_size": ("2GB", "bulk loads are not slowed by checkpoints"),
    "checkpoint_completion_target": ("0.9", "spreads the writes"),
    "random_page_cost": ("1.1", "solid-state disks"),
    "jit": ("off", "every statement is short; compiling costs more than it saves"),
    "autovacuum_naptime": ("15s", "hot tables are small and change fast"),
    "restart_after_crash": ("on", "one backend's crash is healed without the supervisor"),
    "logging_collector": ("on", "bounded files: one per weekday, overwritten after a week"),
    "log_destination": ("'stderr'", "plain text"),
    "log_directory": ("'log'", "inside the data directory, 0700"),
    "log_filename": ("'postgresql-%a.log'", "seven files"),
    "log_rotation_age": ("1d", "seven files"),
    "log_truncate_on_rotation": ("on", "seven files"),
    "log_min_messages": ("warning", "the daemon watches the process itself"),
    "log_statement": ("'none'", "statements carry file names and passwords"),
    "log_min_error_statement": ("panic", "the same for statements that fail"),
    "log_min_duration_statement": ("-1", "the same for slow ones"),
    "log_parameter_max_length": ("0", "the same for values"),
    "log_parameter_max_length_on_error": ("0", "the same for values"),
    "log_error_verbosity": ("terse", "details of errors quote values"),
    "log_timezone": ("'UTC'", "one time everywhere"),
    "timezone": ("'UTC'", "one time everywhere"),
    "cluster_name": ("'boxd'", "tells its processes from another cluster's"),
    "dynamic_library_path": ("'$libdir'", "nothing is loaded from elsewhere"),
    "shared_preload_libraries": ("''", "nothing is preloaded"),
}


def configuration() -> str:
    """Text of postgresql.conf."""
    lines = ["# Written by boxd at every start; changes made here are lost."]
    lines += [f"{name} = {value}  # {why}" for name, (value, why) in SETTINGS.items()]
    return "\n".join(lines) + "\n"


def host_based_access() -> str:
    """Text of pg_hba.conf: scram over the local socket, volumes' roles only into our database."""
    return "\n".join(
        (
            "# Written by boxd at every start; changes made here are lost.",
            f"local  {DATABASE}  all  scram-sha-256",
            f"local  all  {SUPERUSER}  scram-sha-256",
            "local  all  all  reject",
            "",
        )
    )
