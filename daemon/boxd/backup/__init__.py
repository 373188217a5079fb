"""Backup and restore of the control plane, without /wrk and the disks of boxes."""
