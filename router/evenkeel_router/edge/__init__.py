"""Sockets, clocks and files around the core."""
