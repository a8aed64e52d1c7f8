"""What warnings say."""


def messages_of(caught):
    """The texts of warnings that `pytest.warns` or `warnings.catch_warnings` caught."""
    return [str(warning.message) for warning in caught]
