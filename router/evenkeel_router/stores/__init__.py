"""Where the ledger outlives this router: one seam (`contract`), a module per store, and who calls it (`keeping`)."""
