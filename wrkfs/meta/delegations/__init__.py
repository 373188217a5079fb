"""Write delegations: changes that a mount decides by itself, keeps in a journal, and sends later.

Rules: functions/1_delegations.sql. `grants` asks for delegations and gives them back. `store`
decides whether a change is local, and `local_changes` makes it. `delta` has its rows, `journal`
writes them to the host's disk, and `flusher` sends them.
"""
