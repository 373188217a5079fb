"""Budgets of owners: bytes and tasks that this process holds for one owner at a time."""
