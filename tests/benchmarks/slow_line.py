"""A line of 1 MB/s, for ssh's ProxyCommand: passes bytes between standard input and output and a port of this machine,
which is its argument.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

BYTES_PER_S = 1e6


def main() -> None:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as there:
        threading.Thread(target=send, args=(there,), daemon=True).start()
        while data := there.recv(10_000):
            os.write(1, data)
            time.sleep(len(data) / BYTES_PER_S)


def send(there: socket.socket) -> None:
    while data := os.read(0, 1 << 16):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
