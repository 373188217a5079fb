"""Write delegations: changes that a mount decides by itself, keeps in a journal, and sends later.

Rules: functions/1_delegations.sql. `store` decides whether a change is local, `local_changes` makes
it, `delta` keeps its rows, `journal` keeps them on the host's disk, and `flusher` sends them.
"""
