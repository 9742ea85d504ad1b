"""The HTTP API that clients use, as pure functions: what a request asks for, its sender, and its answers and errors."""
