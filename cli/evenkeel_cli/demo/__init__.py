"""`evenkeel demo`: one client floods a fleet of real processes, with and without fair scheduling."""
