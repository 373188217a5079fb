"""A fast HTTP server in Python. The benchmark copies this file into a box and runs it there.

`GET /small` returns 2 bytes, `GET /N` returns N bytes, and `PUT /` reads a body and returns its
length. Bodies are read and written in pieces of 1 MiB. Each connection has a thread.
"""

import socket
import sys
import threading

PIECE = 1 << 20


def serve(place: socket.socket) -> None:
    """Answer the requests of a connection."""
    place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    rest, into, zeros = b"", bytearray(PIECE), bytes(PIECE)
    while True:
        while b"\r\n\r\n" not in rest:
            more = place.recv(65536)
            if not more:
                place.close()
                return
            rest += more
        head, _, rest = rest.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next((int(one[15:]) for one in lines if one.startswith(b"content-length:")), 0)
        left = size - len(rest)
        rest = b"" if left >= 0 else rest[size:]
        while left > 0:
            count = place.recv_into(into, min(left, PIECE))
            if not count:
                place.close()
                return
            left -= count
        target = head.split()[1].rpartition(b"/")[2]
        close = b"connection: close" in lines
        last = b"Connection: close\r\n" if close else b""
        if target.isdigit():
            count = int(target)
            place.sendall(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n" % (last, count))
            for start in range(0, count, PIECE):
                place.sendall(zeros[: min(PIECE, count - start)])
        else:
            body = b"%d" % size if size else b"ok"
            head = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n" % (last, len(body))
            place.sendall(head + body)
        if close:
            place.close()
            return


def main() -> None:
    """Listen on the port in the first argument."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
    while True:
        place, _ = listener.accept()
        threading.Thread(target=serve, args=(place,), daemon=True).start()


if __name__ == "__main__":
    main()
