"""Protocol adapter only. The routes of an account: workspaces, profiles, secrets, keys, asks."""
