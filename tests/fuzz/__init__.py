"""Nonsense, packet by packet, for whoever takes packets from strangers."""
