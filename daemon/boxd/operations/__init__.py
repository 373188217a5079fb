"""The verbs of the service. Every surface calls only this; what it may is decided in authz."""

from boxd.model.view import BoxView, NextAct
from boxd.operations.verbs import Operations

__all__ = ["BoxView", "NextAct", "Operations"]
