"""Replica policies: which waiting request enters the running batch next (design R1)."""
