"""The drive: a POSIX filesystem on PostgreSQL and S3. It does not know FUSE or HTTP."""
