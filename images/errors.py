"""What can go wrong where images and programs are built, said in one line."""


class BuildError(Exception):
    """An image or a program cannot be built; the message names the cause."""


class NotHereError(BuildError):
    """This machine cannot have what was asked for: no root, no packages, no Go modules."""
