"""Keeps queues in order: recovers lost jobs, promotes due ones, mirrors to the database."""
