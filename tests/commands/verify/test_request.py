"""What verify is asked for: which of its options a certificate holds."""

from verify_requests import asked

from detcli.commands.verify import verify
from detcli.commands.verify.request import VerifyRequest, uncertified_names
from detcli.config.option import option
from detcli.core import frozen


def test_a_certificate_holds_each_option_without_a_reason_not_to():
    request = asked("a.onnx").to_json()
    options = vars(verify)["options"]
    assert options.keys() == request.keys() | uncertified_names()
    assert not request.keys() & uncertified_names()


def test_options_that_a_certificate_does_not_hold():
    assert uncertified_names() == {
        "certificate",
        "check",
        "format",
        "quiet",
        "report",
        "report_link",
        "verbose",
    }


@frozen
class RequestWithNewOption(VerifyRequest):
    limit: int = option(3, "--limit N", "An option that somebody adds to verify.")


def test_a_new_option_of_verify_is_in_the_certificate():
    request = RequestWithNewOption.from_json(
        {"model": "a.onnx", "images": ["pictures"], "limit": 5}
    )
    assert request.to_json()["limit"] == 5


def test_a_certificate_without_the_new_option_asks_for_its_default():
    names = RequestWithNewOption.certified_names()
    before = asked("a.onnx").to_json()
    request = RequestWithNewOption.from_json({name: before.get(name) for name in names})
    assert request.limit == 3
