"""The one exception for input the user can mend: the command line prints it as one line and exits with 2."""


class InputError(ValueError):
    """Bad input. The message says what is wrong, where (file, field, row) and what to do about it."""
