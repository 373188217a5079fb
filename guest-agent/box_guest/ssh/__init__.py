"""The SSH server of the agent, and its tunnel to the daemon."""
