"""Accounts: their SSH keys, their recovery codes and their names."""
