"""Objects, through obstore, on a server whose faults are ours; boto3 looks at what came of it."""

import re

import pytest

from detcli.storage import objects as module
from detcli.storage.object_errors import ObjectError, ObjectExistsError, ObjectMissingError
from detcli.storage.objects import Bucket

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 1000

NAMES = [
    "pics/a b.jpg",
    "pics/ä.jpg",
    "pics/q?x=1#f.jpg",
    "pics/100%25.jpg",
    "pics/50%.jpg",
    "pics/a+b.jpg",
    "pics/day=1/&x.jpg",
    "pics/'quoted'.jpg",
    "pics/日本.jpg",
    "pics/a\\b.jpg",
]


@pytest.fixture
def bucket(s3):
    s3.put("first")
    return Bucket("s3", "photos")


def read(bucket, key):
    size, chunks = bucket.read(key)
    content = b"".join(chunks)
    assert len(content) == size
    return content


def keys(bucket, folder=""):
    names = []
    for page in bucket.list(folder):
        for key, _, _ in page:
            names.append(key)
    return names


def test_an_object_is_read_and_written_by_its_very_name(s3, bucket):
    for name in NAMES:
        s3.put(name, b"read")
        assert read(bucket, name) == b"read"
        bucket.write(name, b"written")
        assert s3.get(name) == b"written"


def test_a_listing_has_all_names_in_the_order_of_their_bytes(s3, bucket):
    for name in NAMES:
        s3.put(name, b"12")
    assert keys(bucket, "pics/") == sorted(NAMES, key=str.encode)
    assert keys(bucket) == ["first"] + sorted(NAMES, key=str.encode)
    assert re.fullmatch('"[0-9a-f]{32}"', next(bucket.list("pics/"))[0][1])
    assert keys(bucket, "pics/day=1/") == ["pics/day=1/&x.jpg"]
    assert keys(bucket, "pic/") == keys(bucket, "gone/") == []


def test_objects_of_all_sizes_are_read(s3, bucket):
    for size in (0, 1, module.CHUNK - 1, module.CHUNK, module.CHUNK + 1):
        s3.put("sized", bytes(size))
        assert read(bucket, "sized") == bytes(size)


def test_requests_are_repeated_and_torn_bodies_completed(s3, bucket):
    s3.put("long", CONTENT)
    s3.faults.refuse_each, s3.faults.cut_each = 3, 2
    for _ in range(20):
        assert read(bucket, "long") == CONTENT
    assert len(s3.requests) > 40


def test_a_listing_goes_on_where_it_was_torn(s3, bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "7")
    monkeypatch.setattr(module, "PAGE", 7)
    names = [f"many/{number:03}" for number in range(40)]
    for name in names:
        s3.put(name)
    s3.faults.refuse_each, s3.faults.cut_each = 5, 3
    assert keys(bucket, "many/") == names


def test_what_is_always_torn_is_an_error(s3, bucket):
    s3.put("long", CONTENT)
    s3.faults.cut_each = 1
    with pytest.raises(ObjectError, match="broke off"):
        read(bucket, "long")
    with pytest.raises(ObjectError, match="broke off"):
        keys(bucket)


def test_an_object_is_made_only_once(s3, bucket):
    bucket.write("one", b"first", replace=False)
    with pytest.raises(ObjectExistsError):
        bucket.write("one", b"second", replace=False)
    assert s3.get("one") == b"first"
    bucket.write("one", b"third")
    assert s3.get("one") == b"third"


def test_a_file_is_sent_in_parts(s3, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "UPLOAD_CHUNK", 5 << 20)  # the least that S3 takes
    content = CONTENT * 48
    (tmp_path / "file").write_bytes(content)
    s3.faults.refuse_each = 4
    with (tmp_path / "file").open("rb") as file:
        bucket.write("large", file)
    assert s3.get("large") == content
    methods = [request[0] for request in s3.requests]
    assert methods.count("PUT") > 2


def test_keys_that_would_become_others_are_refused(bucket):
    for key in ("", "/a", "a/", "a//b", "../a", "a/./b"):
        with pytest.raises(ObjectError, match="empty part"):
            bucket.read(key)


@pytest.mark.parametrize("name", ["odd/a\x01.jpg", "odd//a.jpg", "odd/../a.jpg"])
def test_a_key_that_cannot_be_listed_is_named(s3, bucket, name):
    s3.put(name)
    with pytest.raises(
        ObjectError, match=r"has an empty part, \. or \.\., or a control code"
    ) as error:
        keys(bucket, "odd/")
    assert error.value.hint == "copy it to another key"
    with pytest.raises(ObjectError, match=r"has an empty part"):
        bucket.read(name)


def test_what_is_not_there_is_missing(bucket):
    with pytest.raises(ObjectMissingError, match="no such object"):
        bucket.read("gone")
    gone = Bucket("s3", "gone")
    for use in (lambda: keys(gone), lambda: gone.read("a"), lambda: gone.write("a", b"")):
        with pytest.raises(ObjectMissingError, match="no such bucket"):
            use()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (("403 Forbidden", "AccessDenied"), "access denied: 403 Forbidden AccessDenied"),
        (("403 Forbidden", "ExpiredToken"), "does not take the credentials: .* ExpiredToken"),
        (("401 Unauthorized", ""), "does not take the credentials: 401"),
        (("301 Moved Permanently", "PermanentRedirect"), "another region"),
        (("400 Bad Request", "AuthorizationHeaderMalformed"), "another region"),
        (("409 Conflict", "OperationAborted"), "the store answers 409"),
        (("418 I'm a teapot", ""), "the store answers 418"),
    ],
)
def test_a_refusal_has_its_reason(s3, bucket, status, reason):
    s3.faults.status = status
    for use in (lambda: keys(bucket), lambda: bucket.read("a"), lambda: bucket.write("a", b"")):
        with pytest.raises(ObjectError, match=reason) as caught:
            use()
        assert caught.value.hint


def test_a_store_that_always_fails_or_hangs_is_an_error(s3, monkeypatch):
    monkeypatch.setattr("detcli.storage.objects.RETRY_S", 1)
    s3.faults.refuse_each = 1
    with pytest.raises(ObjectError, match="the store answers 503"):
        Bucket("s3", "photos").read("a")
    s3.faults.hang.set()
    with pytest.raises(ObjectError, match="does not answer"):
        Bucket("s3", "photos", timeout_s=0.5).read("a")


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:9", "refuses connections"),
        ("https://no.such.host.invalid", "not known|cannot be reached"),
        ("nonsense", "endpoint is not an address"),
        ("https://", "endpoint is not an address"),
    ],
)
@pytest.mark.usefixtures("s3")
def test_a_wrong_endpoint_is_an_error(monkeypatch, endpoint, reason):
    monkeypatch.setattr("detcli.storage.objects.RETRY_S", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ObjectError, match=reason):
        Bucket("s3", "photos").read("a")


def test_a_signed_address_needs_no_credentials(s3, bucket):
    import urllib.request

    s3.put("clip", b"12345")
    with urllib.request.urlopen(bucket.sign("clip")) as answer:  # noqa: S310
        assert answer.read() == b"12345"
