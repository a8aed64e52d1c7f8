"""What goes wrong with an object store, in our words.

Nothing that a store or a library says is passed on whole: it may hold signed addresses and keys.
"""

import re

from detcli.text import public_text

SIGN_IN = {
    "s3": "sign in as for the aws command (aws configure, AWS_PROFILE, AWS_ACCESS_KEY_ID), "
    "or set AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "sign in with gcloud auth application-default login or GOOGLE_APPLICATION_CREDENTIALS, "
    "or set GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "sign in with az login or AZURE_STORAGE_KEY, "
    "or set AZURE_SKIP_SIGNATURE=true for a public container",
}


class ObjectError(Exception):
    """A store could not be reached, or refused a request.

    Attributes:
        hint: What to do next.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class ObjectDeniedError(ObjectError):
    """These credentials may not do this."""


class ObjectMissingError(ObjectError):
    """The object or its bucket does not exist."""


class ObjectExistsError(ObjectError):
    """An object that was to be made is there already."""


class ObjectTornError(ObjectError):
    """An answer ended before its end."""


WRONG_CREDENTIALS = frozenset(
    [
        *("AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"),
        *("RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"),
    ]
)
"""Codes of S3 and Azure."""

WRONG_REGION = frozenset(
    ["AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"]
)

BUSY = frozenset(["ConditionalRequestConflict", "OperationAborted"])
"""Codes for a write by others at the same moment; obstore takes them for an existing object."""

UNAUTHORISED, FORBIDDEN, NOT_FOUND = 401, 403, 404
MOVED = frozenset([301, 302, 307, 308])

NO_CREDENTIALS = re.compile(
    r"token request|https?://(169\.254\.169\.254|metadata\.google\.internal)/|OpenCredentials"
    r"|DecodeCredentials|Invalid Access Key|az account get-access-token"
)
"""What obstore says where it asked the machine for its identity, or could not read a key."""

CHECK_HOST = "check the network, and the variables for the endpoint and the proxy"

REASONS = (
    ("dns error", "the name of its host is not known", CHECK_HOST),
    ("ConnectionRefused", "its host refuses connections", CHECK_HOST),
    ("certificate", "the certificate of its host is not trusted", CHECK_HOST),
    ("kind: Timeout", "the store does not answer", CHECK_HOST),
    ("TimedOut", "the store does not answer", CHECK_HOST),
    ("kind: Connect", "its host cannot be reached", CHECK_HOST),
    ("BadScheme", "its endpoint is not encrypted", "begin it with https://"),
    ("MissingAccount", "no storage account is named", "set AZURE_STORAGE_ACCOUNT"),
    ("edirect", "the bucket is in another region", "set AWS_REGION to the bucket's"),
    ("Could not parse path", "its key has an empty part, . or ..", "copy it to another key"),
    ("invalid path", "one of its keys has an empty part, . or ..", "copy it to another key"),
)
"""A word of obstore's, what it means, and what to do."""


def explained(error: Exception, scheme: str) -> ObjectError:
    """What obstore raised, as an error that may be printed."""
    text = str(error)
    code = match[1] if (match := re.search(r"<Code>(\w+)</Code>", text)) else ""
    if type(error).__name__ == "AlreadyExistsError" and code not in BUSY:
        return ObjectExistsError("it exists already", "name another")
    if NO_CREDENTIALS.search(text):
        return ObjectError("no credentials found", SIGN_IN[scheme])
    if answer := re.search(r"status code: (\d{3})(?: ([\w ]+))?", text):
        return _answered(int(answer[1]), answer[2] or "", code, scheme)
    text = re.sub(r"https?://\S+", "", text)  # a key may hold any word
    for sign, reason, hint in REASONS:
        if sign in text:
            return ObjectError(reason, hint)
    if any(sign in text for sign in ("IncompleteBody", "kind: Interrupted", "kind: Decode")):
        return ObjectTornError("the connection broke off", "try it again later")
    first = public_text(text.partition("\n")[0])
    return ObjectError(first[:300], "check the address and the settings of the store")


def _answered(status: int, phrase: str, code: str, scheme: str) -> ObjectError:
    """What the status of an answer and the store's own code mean."""
    said = " ".join(filter(None, (str(status), phrase.strip(), code)))
    if code in WRONG_CREDENTIALS or status == UNAUTHORISED:
        return ObjectError(f"the store does not take the credentials: {said}", SIGN_IN[scheme])
    if status == NOT_FOUND:
        what = "bucket" if code in {"NoSuchBucket", "ContainerNotFound"} else "object"
        return ObjectMissingError(f"there is no such {what}", "check its name")
    if status == FORBIDDEN:
        hint = "check the name, and what these credentials may do there"
        return ObjectDeniedError(f"access denied: {said}", hint)
    if scheme == "s3" and (code in WRONG_REGION or status in MOVED):
        hint = "set AWS_REGION to the bucket's region"
        return ObjectError(f"the bucket is in another region: {said}", hint)
    return ObjectError(f"the store answers {said}", "try it again later")
