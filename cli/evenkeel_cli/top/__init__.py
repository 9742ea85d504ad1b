"""`evenkeel top`: what each client gets, against what it is owed, while it happens."""
