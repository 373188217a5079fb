"""The drive: a POSIX filesystem over PostgreSQL and S3. Knows no FUSE, no HTTP."""
