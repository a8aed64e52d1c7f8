"""Addresses of objects."""

import pytest

from detcli.core.text import is_object
from detcli.storage.object_errors import ObjectError
from detcli.storage.objects import Address


@pytest.mark.parametrize("name", ["s3://a/b", "S3://a/b", "gs://a", "az://a/"])
def test_the_schemes_of_stores(name):
    assert is_object(name)
    assert str(Address.parse(name)).lower().startswith(name.lower())


@pytest.mark.parametrize("name", ["s3://", "s3:///key", "s3://me:pw@photos/a", "s3://a b/c"])
def test_what_is_no_bucket_is_refused(name):
    with pytest.raises(ObjectError, match="not a valid address") as caught:
        Address.parse(name)
    assert "pw" not in str(caught.value) + caught.value.hint
