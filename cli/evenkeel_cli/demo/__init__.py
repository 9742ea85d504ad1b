"""`evenkeel demo`: one client floods a fleet, with and without fair scheduling, on the wall clock."""
