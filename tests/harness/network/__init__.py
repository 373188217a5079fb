"""Hosts and servers beside the boxes, and probes that run in boxes."""
