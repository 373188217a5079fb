"""Backup and restore of the control plane; /wrk and the disks of boxes are not in it."""
