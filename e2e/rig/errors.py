"""What can go wrong with the rig, said in one line."""


class RigError(Exception):
    """The rig cannot do what was asked; the message names the cause and where to look."""
