"""The console of administrators: `ssh sudo@HOST COMMAND`."""
