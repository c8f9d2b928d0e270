"""The one exception that this package raises on purpose."""


class BayesCaffeError(Exception):
    """Something the user can put right; the message says what was found and what is expected."""
