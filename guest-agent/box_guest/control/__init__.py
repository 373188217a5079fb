"""Control: the guest socket, and the control channel to the daemon."""
