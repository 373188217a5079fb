"""The runc backend, the default one."""
