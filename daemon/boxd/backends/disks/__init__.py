"""Disks of boxes: overlays, btrfs subvolumes, and their limits."""
