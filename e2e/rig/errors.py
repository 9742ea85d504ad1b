"""What can go wrong with the rig, said in one line."""


class RigError(Exception):
    """The rig cannot do what was asked; the message names the cause and where to look."""


class NotHereError(RigError):
    """This machine cannot have a cluster, whatever the rig does: no root, no packages, no Go modules."""
