"""An app whose tasks do what jobs do when things go wrong."""
