"""Who is measured: each can mount its volume, drop its caches, and unmount."""
