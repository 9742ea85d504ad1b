"""The objects of one service, as pure builders: one file per concern."""
