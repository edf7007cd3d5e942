"""Set up, run and test the project: `python tools/dev.py lab` (or `make lab`). `python tools/dev.py help` lists all.

This file runs on any Python 3, if only to find a newer one and go on there; the work is done by the modules beside it.
Standard library only.
"""

import os
import subprocess
import sys

import pythons


def main():
    if sys.version_info < pythons.NEEDED:
        found, message = pythons.choose()
        if found is None:
            sys.exit(message)
        sys.exit(subprocess.call([found.path, os.path.abspath(__file__)] + sys.argv[1:]))
    import commands

    sys.exit(commands.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
