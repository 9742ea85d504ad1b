"""Where a router's ledger outlives its process."""
