"""The drive beside its peers: workloads, growth, requests, contention."""
