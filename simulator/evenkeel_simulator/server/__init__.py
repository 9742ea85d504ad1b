"""The wall-clock driver: an HTTP server that a router cannot tell from SGLang."""
