"""Heads of requests: which of them the router serves, and what is wrong with the others (RFC 9110, RFC 9112). Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPMethod
from typing import Final

import httptools
from multidict import CIMultiDict, istr

_HOST: Final = istr("Host")
_TRANSFER_ENCODING: Final = istr("Transfer-Encoding")
_HOST_PORT: Final = re.compile(
    r"(?:\[[0-9A-Fa-f:.vV%]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII
)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*(?P<rest>[^#]*)(?:#.*)?", re.ASCII)
_REQUEST_LINE: Final = re.compile(
    rb"^(?P<method>[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) \S+ HTTP/(?P<version>\d\.\d)\r?$", re.MULTILINE
)


_METHODS: Final = frozenset(one.value.encode() for one in HTTPMethod)


class HttpSyntaxError(Exception):
    """The bytes are not an HTTP/1 request."""


class TransferCodingError(HttpSyntaxError):
    """The request uses a transfer coding other than `chunked`."""


class CrowdedOutError(HttpSyntaxError):
    """The connection closes for others while the body arrives."""


class UnknownMethodError(HttpSyntaxError):
    """No method of HTTP has this name, or it is for proxies."""


class VersionError(HttpSyntaxError):
    """The request has another version of HTTP."""


class LongTargetError(HttpSyntaxError):
    """The target of the request is too long."""


class LargeHeadError(HttpSyntaxError):
    """The headers are too many or too long."""


def check_head(version: str, headers: CIMultiDict[str]) -> None:
    """Raise `HttpSyntaxError` if the router does not serve requests with this head."""
    if version not in ("1.1", "1.0"):
        raise VersionError(version)
    hosts = headers.getall(_HOST, ())
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise HttpSyntaxError("a request has one Host header")
    if hosts and not _is_host(hosts[0]):
        raise HttpSyntaxError("the Host header is no host")
    if _TRANSFER_ENCODING in headers:
        if version == "1.0":
            raise HttpSyntaxError("HTTP/1.0 has no transfer codings")
        coding = ", ".join(headers.getall(_TRANSFER_ENCODING))
        if coding.lower() != "chunked":
            raise TransferCodingError(coding)


@lru_cache(maxsize=1024)
def _is_host(given: str) -> bool:
    """Whether it is a host with or without a port (RFC 9110, section 7.2)."""
    return _HOST_PORT.fullmatch(given) is not None


def origin_target(method: str, target: str) -> str:
    """Path and query of a target that does not begin with a path (RFC 9112, section 3.2); raises `HttpSyntaxError`."""
    if method == "CONNECT":
        raise UnknownMethodError("CONNECT is for proxies")
    if target == "*" and method == "OPTIONS":
        return target
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise HttpSyntaxError("the target is neither a path nor an address")
    rest = found["rest"]
    if not rest and method == "OPTIONS":
        return "*"
    return rest if rest.startswith("/") else f"/{rest}"


def unparsed(error: Exception, data: bytes) -> HttpSyntaxError:
    """What is wrong with bytes that the parser refused."""
    unknown_method = isinstance(error, httptools.HttpParserInvalidMethodError)
    for line in _REQUEST_LINE.finditer(data):  # good requests may stand before it
        if unknown_method and line["method"] not in _METHODS:
            return UnknownMethodError(line["method"].decode())
        if line["version"] not in (b"1.0", b"1.1"):
            return VersionError(line["version"].decode())
    return HttpSyntaxError(str(error))
