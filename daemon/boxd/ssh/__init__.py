"""The SSH interface: the listener, the management CLI and the administrators' console.

Protocol adapter only.
"""
