"""The content of volumes: metadata, trees, consistency and leaks."""
