"""Decisions about a request, pure."""
