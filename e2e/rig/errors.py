"""What can go wrong with the rig, said in one line."""

from images.errors import BuildError, NotHereError

__all__ = ["NotHereError", "RigError"]


class RigError(BuildError):
    """The rig cannot do what was asked; the message names the cause and where to look."""
