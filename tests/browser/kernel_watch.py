"""IPython start-up file of the kernels under test: note every attempt of Python to reach another machine.

Copied into a temporary IPython profile by `lab_server.py`. Python's audit hook sees all of `socket`; native code that
opens its own sockets is not seen here. It runs in the notebook's namespace, so it leaves no name behind: a lesson that
forgot an import must still fail.
"""


def _watch():
    import os
    import sys

    log_path = os.environ.get("QP_OUTGOING_LOG")
    here = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "", None}

    def note_outgoing(event, args):
        if event == "socket.getaddrinfo":
            host = args[0]
        elif event in ("socket.connect", "socket.sendto"):
            address = args[1]
            host = address[0] if isinstance(address, tuple) else None  # a string is a socket file
        else:
            return
        host = host.decode() if isinstance(host, bytes) else host
        if host in here or str(host).startswith("127."):
            return
        with open(log_path, "a") as log:
            log.write(f"{event} {host}\n")

    if log_path:
        sys.addaudithook(note_outgoing)


_watch()
del _watch
