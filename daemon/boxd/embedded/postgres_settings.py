"""The settings of the embedded PostgreSQL, each with its reason. Pure."""

from __future__ import annotations

DATABASE = "boxd"
"""The database of the cluster, besides the three of PostgreSQL itself."""
SUPERUSER = "boxd"
"""The bootstrap role. Only the daemon uses it."""

SETTINGS: dict[str, tuple[str, str]] = {
    "listen_addresses": ("''", "no TCP listener; clients use the socket directory"),
    "unix_socket_permissions": ("0777", "mounts have other users; a parent directory is 0700"),
    "max_connections": ("1000", "100 volumes with a mount and an HTTP handle of four each"),
    "superuser_reserved_connections": ("20", "the daemon can connect when volumes hold all others"),
    "authentication_timeout": ("10s", "a client that does not log in occupies a slot"),
    "password_encryption": ("'scram-sha-256'", "the only login method"),
    "fsync": ("on", "acknowledged writes survive a crash"),
    "full_page_writes": ("on", "recovery repairs a page that a crash left half written"),
    "synchronous_commit": ("on", "functions that may answer earlier turn it off themselves"),
    "data_sync_retry": ("off", "a failed fsync causes a crash and recovery, not a lost write"),
    "wal_writer_delay": ("10ms", "metadata without fsync reaches the disk soon"),
    "wal_level": ("replica", "a base backup stays possible"),
    "max_wal_senders": ("0", "there is no replication"),
    "max_replication_slots": ("0", "there is no replication"),
    "max_logical_replication_workers": ("0", "there is no replication"),
    "max_prepared_transactions": ("0", "no transaction outlives its connection"),
    "max_locks_per_transaction": ("256", "the locks of one role leave room for all others"),
    "max_worker_processes": ("0", "no parallel queries: their shared memory has no limit"),
    "temp_file_limit": ("1GB", "per process; only a superuser can raise it"),
    "idle_in_transaction_session_timeout": ("30s", "an idle transaction holds back vacuum"),
    "shared_buffers": ("256MB", "metadata of about a million files"),
    "max_wal_size": ("2GB", "checkpoints do not slow bulk loads"),
    "checkpoint_completion_target": ("0.9", "spreads the writes"),
    "random_page_cost": ("1.1", "solid-state disks"),
    "jit": ("off", "every statement is short; compilation costs more than it saves"),
    "autovacuum_naptime": ("15s", "hot tables are small and change fast"),
    "restart_after_crash": ("on", "PostgreSQL recovers from a backend's crash by itself"),
    "logging_collector": ("on", "bounded files: one per weekday, overwritten after a week"),
    "log_destination": ("'stderr'", "plain text"),
    "log_directory": ("'log'", "inside the data directory, 0700"),
    "log_filename": ("'postgresql-%a.log'", "seven files"),
    "log_rotation_age": ("1d", "seven files"),
    "log_truncate_on_rotation": ("on", "seven files"),
    "log_min_messages": ("warning", "the daemon supervises the process itself"),
    "log_statement": ("'none'", "statements contain file names and passwords"),
    "log_min_error_statement": ("panic", "failed statements contain file names and passwords"),
    "log_min_duration_statement": ("-1", "slow statements contain file names and passwords"),
    "log_parameter_max_length": ("0", "parameters contain file names and passwords"),
    "log_parameter_max_length_on_error": ("0", "parameters contain file names and passwords"),
    "log_error_verbosity": ("terse", "details of errors quote values"),
    "log_timezone": ("'UTC'", "one time zone everywhere"),
    "timezone": ("'UTC'", "one time zone everywhere"),
    "cluster_name": ("'boxd'", "shows in the titles of its processes"),
    "dynamic_library_path": ("'$libdir'", "nothing is loaded from elsewhere"),
    "shared_preload_libraries": ("''", "nothing is preloaded"),
}


def configuration() -> str:
    """Return the text of postgresql.conf."""
    lines = ["# Written by boxd at every start; changes made here are lost."]
    lines += [f"{name} = {value}  # {reason}" for name, (value, reason) in SETTINGS.items()]
    return "\n".join(lines) + "\n"


def host_based_access() -> str:
    """Return the text of pg_hba.conf.

    Logins use SCRAM over the local socket. Roles of volumes reach only the database of boxd.
    """
    return "\n".join(
        (
            "# Written by boxd at every start; changes made here are lost.",
            f"local  {DATABASE}  all  scram-sha-256",
            f"local  all  {SUPERUSER}  scram-sha-256",
            "local  all  all  reject",
            "",
        )
    )
