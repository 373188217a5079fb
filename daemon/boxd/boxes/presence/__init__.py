"""Presence: attachments, activity, expiry of credentials, and resource use of boxes."""
