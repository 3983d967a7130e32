"""What the acceptance tests are made of: a site of probe tasks, real workers, a ledger, a fault proxy, a check of all jobs."""
