"""The interface of a metadata store: names, files and upkeep, and the leases on them."""
