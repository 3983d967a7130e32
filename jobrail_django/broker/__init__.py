"""The only place that runs scripts or writes a key in Redis. Knows no Django but `conf`."""
