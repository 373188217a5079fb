"""The measured file systems. Each can mount its volume, drop its caches, and unmount."""
