"""Stands for the Python executable: asks the fork server for a process and waits for it.

Run as a script with nothing but the standard library, so that it starts in a few milliseconds.
"""

import array
import json
import os
import signal
import socket
import sys

SOCKET_VARIABLE = "ATLAS_WARM_SOCKET"
MAX_DESCRIPTORS = 64


def _open_descriptors() -> list[int]:
    """Every inheritable descriptor: what a child started by exec would have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:
            continue  # the descriptor of the listing itself
    return sorted(found)


def main() -> None:
    """Ask for a fork with this process's arguments, environment, folder and descriptors, and end as it ends."""
    descriptors = _open_descriptors()
    server = os.environ.pop(SOCKET_VARIABLE)
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": descriptors,
    }
    data = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(server)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    connection.sendmsg([len(data).to_bytes(8, "big")], [rights])
    connection.sendall(data)
    for descriptor in descriptors:
        if descriptor > 2:
            os.close(descriptor)  # the fork has it now; a pipe must close when the fork closes it
    replies = connection.makefile("r")
    pid = int(json.loads(replies.readline())["pid"])

    def pass_on(number: int, _frame: object) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    line = replies.readline()
    code = int(json.loads(line)["exit"]) if line else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
