"""What each client was served and is owed, over all replicas and routers (DESIGN section 4)."""
