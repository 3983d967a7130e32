"""Runs jobs: a supervisor that owns the leases, and children that run the handlers."""
