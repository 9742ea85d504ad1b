"""What the operator decides: pure. No clock, no cluster, no log."""
