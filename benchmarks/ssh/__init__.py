"""The SSH listener beside Debian's sshd."""
