"""Tunnels: the connections that the boxes' agents make to the daemon, and what runs in them."""
