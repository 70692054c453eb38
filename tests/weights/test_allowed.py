"""A worker reaches only what its owner allows, whatever a stranger's job names."""

from __future__ import annotations

import socket

import pytest

from farflung.errors import WeightsError
from farflung.weights.allowed import Allowed, is_public, public_addresses, shown, split


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/model/",
        "https://example.org:8443/model/",
        "file:///etc/passwd",
        "s3://bucket/model/",
        "ftp://example.org/model/",
        "https:///model",
        "/etc/passwd",
    ],
)
def test_by_default_only_https_is_fetched(url: str) -> None:
    with pytest.raises(WeightsError):
        Allowed.parse([]).prefix_of(url)


def test_by_default_a_public_https_url_is_fetched_and_with_none_nothing() -> None:
    assert Allowed.parse([]).prefix_of("https://example.org/model/") is None
    with pytest.raises(WeightsError, match="is not among the URLs that `farflung join --base` allows"):
        Allowed.parse(["none"]).prefix_of("https://example.org/model/")


ALLOWED = Allowed.parse(["https://hub.example/models", "file:///models/", "http://10.0.0.5:8000/"])


@pytest.mark.parametrize(
    "url",
    [
        "https://hub.example/models",
        "https://hub.example:443/models/a/b.safetensors?download=true",
        "file:///models/a.safetensors",
        "http://10.0.0.5:8000/a",
    ],
)
def test_what_lies_below_a_prefix_is_fetched(url: str) -> None:
    assert ALLOWED.prefix_of(url) is not None


@pytest.mark.parametrize(
    "url",
    [
        "https://hub.example.evil.org/models/a",
        "https://hub.example/models-of-others/a",
        "https://hub.example/other",
        "https://hub.example:444/models/a",
        "http://hub.example/models/a",
        "https://public.example/a",
        "file:///modelsx/a",
        "http://10.0.0.5/a",
    ],
)
def test_what_lies_beside_a_prefix_is_not(url: str) -> None:
    with pytest.raises(WeightsError, match="not among the URLs"):
        ALLOWED.prefix_of(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///models/../etc/passwd", "leads upwards"),
        ("file:///models/%2e%2e/etc/passwd", "leads upwards"),
        ("file:///models/%252e%252e/..", "leads upwards"),
        ("https://hub.example/models/..%2fetc", "leads upwards"),
        ("https://user:secret@hub.example/models/a", "must not hold a user or password"),
        ("https://hub.example@evil.org/models/a", "must not hold a user or password"),
        ("https://hub.example/models/a#b", "more than the URL"),
        ("simplecache::file:///models/a", "is no URL"),
        ("s3://bucket/a::file:///etc/passwd", "more than the URL"),
        ("https://hub.example\\@evil.org/models/a", "is no URL"),
        ("https://hub.example/models/a\r\nHost: evil.org", "is no URL"),
        ("https://hub.example:port/models/a", "is no URL"),
        ("https://hub.example/" + "a" * 3000, "is no URL"),
        ("", "is no URL"),
    ],
)
def test_a_url_that_could_mean_two_things_is_refused(url: str, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        ALLOWED.prefix_of(url)
    assert "secret" not in str(caught.value) and len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_a_redirect_may_lead_to_any_public_https_url_and_nowhere_else() -> None:
    assert ALLOWED.redirected("https://cdn.example/a") is None
    assert ALLOWED.redirected("http://10.0.0.5:8000/b") is not None
    for url in ("http://cdn.example/a", "file:///etc/passwd", "https://cdn.example:22/a"):
        with pytest.raises(WeightsError, match="a redirect leads to"):
            ALLOWED.redirected(url)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::10.0.0.1", False),
        ("2002:0a00:0001::", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::", False),
        ("64:ff9b:1::7f00:1", False),
        ("64:ff9b:1:ffff::808:808", False),
        ("64:ff9b::8.8.8.8", True),
    ],
)
def test_addresses_of_private_networks_are_known_in_every_dress(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_name_of_which_one_address_is_private_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner reads which address that is; the submitter, who may be a stranger, does not."""

    def resolved(host: str, port: int, type: int) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, port)) for address in ("8.8.8.8", "192.168.1.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(WeightsError, match=r"sly\.example has an address that is not public") as caught:
        public_addresses("sly.example", 443)
    assert "192.168" not in str(caught.value)
    (record,) = caplog.records
    assert "sly.example, which is 192.168.1.1 here" in record.getMessage()


@pytest.mark.parametrize("text", ["huggingface.co", "https://a.example/?token=1", "file:///a/../b"])
def test_a_prefix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(WeightsError):
        Allowed.parse([text])


def test_messages_show_no_secrets() -> None:
    assert shown("https://me:secret@a.example/b?signature=secret") == "https://a.example/b"
    assert split("https://[2001:db8::1]/a").hostname == "2001:db8::1"
