"""The SSH front door, its management CLI, and SSH clients."""
