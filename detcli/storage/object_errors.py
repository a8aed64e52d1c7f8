"""What goes wrong with objects in stores: what obstore raises, as errors that may be printed.

Nothing that a store or a library says is passed on whole: it may hold signed addresses and keys.
"""

import re

from detcli.core.text import escape_unprintable, public_text

SIGN_IN = {
    "s3": "sign in as for the aws command (aws configure, AWS_PROFILE, AWS_ACCESS_KEY_ID), "
    "or set AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "sign in with gcloud auth application-default login or GOOGLE_APPLICATION_CREDENTIALS, "
    "or set GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "sign in with az login or AZURE_STORAGE_KEY, "
    "or set AZURE_SKIP_SIGNATURE=true for a public container",
}

# Codes of stores.
WRONG_CREDENTIALS = frozenset(
    "AuthenticationFailed ExpiredToken InvalidAccessKeyId InvalidToken RequestTimeTooSkewed "
    "SignatureDoesNotMatch TokenRefreshRequired".split()
)
WRONG_REGION = frozenset(
    "AuthorizationHeaderMalformed IllegalLocationConstraintException PermanentRedirect".split()
)
BUSY = frozenset(["ConditionalRequestConflict", "OperationAborted"])
"""Others write at the same moment; obstore takes these codes for an existing object."""

NO_CREDENTIALS = (
    r"token request|https?://(169\.254\.169\.254|metadata\.google\.internal)/|OpenCredentials"
    r"|DecodeCredentials|Invalid Access Key|az account get-access-token"
)
"""A pattern for the words of obstore where it asked the machine for its identity, or could not read
a key. `re` compiles it when it is first used: that takes long."""

CHECK_HOST = "check the network, and the variables for the endpoint and the proxy"

REASONS = {
    "dns error": ("the name of its host is not known", CHECK_HOST),
    "ConnectionRefused": ("its host refuses connections", CHECK_HOST),
    "certificate": ("the certificate of its host is not trusted", CHECK_HOST),
    "kind: Timeout": ("the store does not answer", CHECK_HOST),
    "TimedOut": ("the store does not answer", CHECK_HOST),
    "kind: Connect": ("its host cannot be reached", CHECK_HOST),
    "BadScheme": ("its endpoint is not encrypted", "begin it with https://"),
    "MissingAccount": ("no storage account is named", "set AZURE_STORAGE_ACCOUNT"),
    "edirect": ("the bucket is in another region", "set AWS_REGION to the bucket's"),
}
"""Words of obstore: what they mean, and what to do."""

MAX_MESSAGE = 300  # characters of a message of obstore shown in an error

BROKEN_OFF = ("IncompleteBody", "kind: Interrupted", "kind: Decode")
"""Words of obstore where an answer ended before its end."""


class ObjectError(Exception):
    """A store could not be reached, or refused a request."""

    of_place = True  # otherwise it concerns one object only

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class ObjectDeniedError(ObjectError):
    """The credentials do not permit this."""


class ObjectMissingError(ObjectError):
    """The object does not exist."""

    of_place = False


class BucketMissingError(ObjectMissingError):
    """Its bucket does not exist."""

    of_place = True


class ObjectExistsError(ObjectError):
    """An object that was to be made already exists."""


class ObjectChangedError(ObjectError):
    """An object has a different ETag."""


class TruncatedObjectError(ObjectError):
    """An answer ended before its end."""


CONDITIONS = {
    "AlreadyExistsError": (ObjectExistsError, "it exists already", "name another"),
    "PreconditionError": (ObjectChangedError, "it has changed", "list it again"),
}
"""What obstore raises for an object that is not as requested."""


class AddressError(ObjectError):
    """An address is not valid."""

    of_place = False


class ObjectKeyError(AddressError):
    """A key is one that obstore does not accept."""

    def __init__(self, key: str = "its key") -> None:
        super().__init__(
            f"{key} has an empty part, . or .., or a control code", "copy it to another key"
        )


def key_error(text: str) -> ObjectKeyError | None:
    """Make the error for a key that obstore refuses to handle, from what obstore says.

    Args:
        text: The message of obstore's exception. That of a listing names the key.

    Returns:
        The error; None if the message is about something else.
    """
    match = re.search(r'invalid path: .*?[Pp]ath "(.*?)"', text)
    if match is not None:
        return ObjectKeyError(f"the key {escape_unprintable(match[1])}")
    if "Could not parse path" in text:
        return ObjectKeyError()
    return None


def explain_error(error: Exception, scheme: str) -> ObjectError:
    """Convert an exception of obstore to an error in words that may be printed.

    obstore has few classes of errors, so the message says most of what happened: by a code of the
    store, such as "NoSuchBucket", by the HTTP status, or by words about the network.

    Args:
        error: The exception. Its message may hold signed addresses.
        scheme: The kind of store, for the hint about how to sign in: "s3", "gs" or "az".
    """
    text = str(error)
    code = _store_code(text)
    error_name = type(error).__name__

    # obstore also raises the class for an existing object where the store is merely busy, as others
    # write at the same moment. That is explained by its HTTP status below.
    is_busy = code in BUSY
    if error_name in CONDITIONS and not is_busy:
        error_class, reason, hint = CONDITIONS[error_name]
        return error_class(reason, hint)

    if re.search(NO_CREDENTIALS, text):
        return ObjectError("no credentials found", SIGN_IN[scheme])
    http_status = re.search(r"status code: (\d{3})(?: ([\w ]+))?", text)
    if http_status is not None:
        status, phrase = http_status.groups(default="")
        return _status_error(int(status), phrase, code=code, scheme=scheme)
    return _network_error(text)


def _store_code(text: str) -> str:
    """Return the store's own code for an error, such as "AccessDenied"; empty if it has none."""
    code = re.search(r"<Code>(\w+)</Code>", text)
    if code is None:
        return ""
    return code[1]


def _network_error(text: str) -> ObjectError:
    """Make the error for a message of obstore that is not the answer of a store."""
    # The addresses in the message have keys, which may hold the words that are looked for.
    text_without_addresses = re.sub(r"https?://\S+", "", text)
    for words, (reason, hint) in REASONS.items():
        if words in text_without_addresses:
            return ObjectError(reason, hint)
    if any(words in text_without_addresses for words in BROKEN_OFF):
        return TruncatedObjectError("the connection broke off", "try it again later")
    first_line = public_text(text_without_addresses.partition("\n")[0])
    message = first_line[:MAX_MESSAGE]
    return ObjectError(message, "check the address and the settings of the store")


def _status_error(status: int, phrase: str, *, code: str, scheme: str) -> ObjectError:
    """Make the error for an HTTP answer of a store.

    Args:
        status: The status, such as 403.
        phrase: Its phrase, such as "Forbidden"; may be empty.
        code: The code of the store, such as "AccessDenied"; may be empty.
        scheme: The kind of store: "s3", "gs" or "az".
    """
    answer = " ".join(part for part in (str(status), phrase.strip(), code) if part)
    if code in WRONG_CREDENTIALS or status == 401:
        return ObjectError(f"the store does not take the credentials: {answer}", SIGN_IN[scheme])
    if status == 404:
        if code in {"NoSuchBucket", "ContainerNotFound"}:
            return BucketMissingError("there is no such bucket", "check its name")
        return ObjectMissingError("there is no such object", "check its name")
    if status == 403:
        hint = "check the name, and what these credentials may do there"
        return ObjectDeniedError(f"access denied: {answer}", hint)
    is_redirected = status in {301, 302, 307, 308}
    if scheme == "s3" and (code in WRONG_REGION or is_redirected):
        hint = "set AWS_REGION to the bucket's region"
        return ObjectError(f"the bucket is in another region: {answer}", hint)
    return ObjectError(f"the store answers {answer}", "try it again later")
