"""Requests that two parsers could read differently.

The service must refuse each one, or read it as exactly one request. An entry is the text after the
request line and the lines with host and key.
"""

from __future__ import annotations

REFUSED = {
    "length and encoding": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "encoding and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "unequal lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "signed length": b"Content-Length: +5\r\n\r\nhello",
    "negative length": b"Content-Length: -5\r\n\r\nhello",
    "hex length": b"Content-Length: 0x5\r\n\r\nhello",
    "fractional length": b"Content-Length: 5.0\r\n\r\nhello",
    "empty length": b"Content-Length: \r\n\r\nhello",
    "unequal listed lengths": b"Content-Length: 5, 6\r\n\r\nhello!",
    "huge length": b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhello",
    "space before the colon": b"Content-Length : 5\r\n\r\nhello",
    "encoding with a space": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "encoding list": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "NUL in a value": b"X-A: a\0b\r\nContent-Length: 0\r\n\r\n",
    "NUL in a name": b"X\0A: b\r\nContent-Length: 0\r\n\r\n",
    "bare CR": b"X-A: a\rContent-Length: 9\r\nContent-Length: 0\r\n\r\n",
    "name with a space": b"X A: b\r\nContent-Length: 0\r\n\r\n",
    "no colon": b"nonsense\r\nContent-Length: 0\r\n\r\n",
    "second host": b"Host: y\r\nContent-Length: 0\r\n\r\n",
    "chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "endless chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 100_000,
    "too many lines": b"X: y\r\n" * 101 + b"Content-Length: 0\r\n\r\n",
    "64 KiB of headers": b"X: " + b"y" * 66_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "a quoted encoding": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "an encoding with a parameter": b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "an encoding with a null": b"Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n",
    "an encoding with a form feed": b"Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n",
    "an underscore in a length": b"Content-Length: 1_0\r\n\r\nhellohello",
    "a length in Arabic digits": "Content-Length: \u0665\r\n\r\nhello".encode(),
    "CR in a name": b"X\rA: b\r\nContent-Length: 0\r\n\r\n",
    "CR LF CR LF by bare CR": b"X: a\r\rContent-Length: 0\r\n\r\n",
    "DEL in a value": b"X: a\x7fb\r\nContent-Length: 0\r\n\r\n",
    "a control byte in a value": b"X: a\x01b\r\nContent-Length: 0\r\n\r\n",
    "no name": b": b\r\nContent-Length: 0\r\n\r\n",
    "a chunk size of spaces": b"Transfer-Encoding: chunked\r\n\r\n \r\nhello\r\n0\r\n\r\n",
    "a space before a chunk size": b"Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    "an underscore in a chunk size": b"Transfer-Encoding: chunked\r\n\r\n0_5\r\nhello\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\n"
    + b"f" * 21
    + b"\r\nhello\r\n0\r\n\r\n",
    "nothing behind a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    "a folded line": b"X-A: a\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
    "a line folded by a tab": b"X-A: a\r\n\tfolded\r\nContent-Length: 5\r\n\r\nhello",
    "an empty folded line": b"X-A: a\r\n \r\nContent-Length: 5\r\n\r\nhello",
    "a folded encoding": b"Transfer-Encoding:\r\n chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "a folded trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n",
    "lines that end in LF": b"Content-Length: 5\n\nhello",
    "LF and CR LF mixed": b"X-A: b\nContent-Length: 5\r\n\r\nhello",
    "an end by LF": b"Content-Length: 5\r\n\nhello",
    "a trailer that ends in LF": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\r\n",
    "chunk lines that end in LF": b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "two Authorization lines": b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"
    b"Content-Length: 0\r\n\r\n",
    "two X-Api-Key lines": b"X-Api-Key: b\r\nContent-Length: 0\r\n\r\n",
    "a long chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;"
    + b"a" * 70_000
    + b"\r\nhello\r\n0\r\n\r\n",
    "a long trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "a malformed trailer": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX A: b\r\n\r\n",
}
"""The text after the header lines that each request has: lengths, encodings, bodies."""

LENIENT = {
    "equal lengths in two lines": (
        b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
    "NUL in a chunk extension": (
        b"Transfer-Encoding: chunked\r\n\r\n5;a\0\r\nhello\r\n0\r\n\r\n",
        b"hello",
    ),
    "equal lengths in one line": (b"Content-Length: 5, 5\r\n\r\nhello", b"hello"),
    "a length with zeros in front": (b"Content-Length: 005\r\n\r\nhello", b"hello"),
    "tabs around a value": (
        b"Transfer-Encoding:\tchunked\t\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"hello",
    ),
    "an encoding in capitals": (
        b"TRANSFER-ENCODING: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"hello",
    ),
    "chunk sizes with zeros in front": (
        b"Transfer-Encoding: chunked\r\n\r\n0005\r\nhello\r\n000\r\n\r\n",
        b"hello",
    ),
    "chunk extensions": (
        b'Transfer-Encoding: chunked\r\n\r\n5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n',
        b"hello",
    ),
    "a space behind a chunk size": (
        b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
        b"hello",
    ),
    "trailers that look like framing": (
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
        b"Content-Length: 999\r\nHost: evil\r\nX-Api-Key: x\r\n\r\n",
        b"hello",
    ),
    "a request in the body": (
        b"Content-Length: 37\r\n\r\nGET /healthz HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: evil\r\n\r\n",
    ),
    "framing that Connection names": (
        b"Connection: close, Content-Length, Host, X-Api-Key\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
    "upgrade to HTTP/2": (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
    "upgrade to something else": (
        b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
    "an expectation nobody knows": (
        b"Expect: 200-maybe\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
}
"""Requests that a server may refuse, or must read as one request with this body."""

LINES = (
    b"GET http://x/healthz HTTP/1.1",
    b"GET x HTTP/1.1",
    b"GET * HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET /a\x01b HTTP/1.1",
    b"GET /a b HTTP/1.1",
    b"GET /\xc3\xa9 HTTP/1.1",
    b"GET  /healthz HTTP/1.1",
    b"GET /healthz",
    b"GET /healthz HTTP/2.0",
    b"GET /healthz HTTP/11",
    b"G@T /healthz HTTP/1.1",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"PRI * HTTP/2.0",
    b"GET /healthz\rHTTP/1.1",
    b"GET /a\0b HTTP/1.1",
    b"GET\t/healthz\tHTTP/1.1",
    b" GET /healthz HTTP/1.1",
    b"GET //x@y:80/ HTTP/1.1 HTTP/1.1",
    b"GET ?a=b HTTP/1.1",
    b"GET /healthz HTTP/1.1x",
    b"GET /healthz http/1.1",
    b"HTTP/1.1 200 OK",
    b"SSH-2.0-OpenSSH_9.2",
)
"""Invalid request lines."""
