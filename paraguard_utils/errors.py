"""Errors that a user can fix.

Each is one line, which names the file, the row or the parameter, and the remedy.
"""


class UserError(Exception):
    """Base of all errors whose message is meant for the user.

    Notebooks show them without a traceback.
    """


class DataError(UserError):
    """A file does not have what its schema requires."""


class Missing(DataError):
    """A file is not in the store."""


class Changed(DataError):
    """A file is not as it was written."""


class ModelError(UserError):
    """A model cannot be found or used."""


class WeightsError(UserError):
    """Packaged weights are missing or are not what they should be."""


class SettingsError(UserError):
    """A parameter is unknown or has a value that is not allowed."""
