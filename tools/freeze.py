"""Write constraints.txt: the versions in ./.venv of everything the project needs, satisfiable on other machines."""

import json
import re

from steps import SetupError, quiet

HEAD = """\
# The tested set: every package the project and its extras need, at the version the tests ran with.
# Written by `python tools/dev.py freeze`. Lines with a marker are kept by hand: packages of other platforms.
"""
# Asked inside the environment: [name, version, its requirements] of every installed package.
INVENTORY = """
import json
from importlib.metadata import distributions
print(json.dumps([[d.metadata["Name"], d.version, d.requires or []] for d in distributions()]))
"""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(requirement):
    """(name, extras it asks for, extras it belongs to) of a requirement line."""
    head, _, marker = requirement.partition(";")
    name, asked = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", head).groups()
    extras = {normal(extra.strip()) for extra in (asked or "").split(",") if extra.strip()}
    return normal(name), extras, {normal(extra) for extra in re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)}


def closure(inventory, root="qp-explorer", extras=("model", "dev")):
    """{name: version} of what `root` with `extras` needs, directly or not, among the installed packages.

    Markers other than `extra` need no evaluation: what they exclude here is not installed.
    """
    packages = {normal(name): (name, version, [parse(line) for line in needs]) for name, version, needs in inventory}
    found, waiting = {}, [(root, frozenset(map(normal, extras)))]
    seen = set()
    while waiting:
        item = waiting.pop()
        name, wanted = item
        if item in seen or name not in packages:
            continue
        seen.add(item)
        shown, version, needs = packages[name]
        if name != root:
            found[shown] = version
        waiting += [(other, frozenset(asks)) for other, asks, part_of in needs if not part_of or part_of & wanted]
    return found


def write(venv):
    """Rewrite constraints.txt from `venv`; return the number of pins."""
    code, out = quiet([venv.python, "-c", INVENTORY])
    if code != 0:
        raise SetupError("there is no working ./.venv to freeze: make env")
    path = venv.root / "constraints.txt"
    kept = [line for line in path.read_text().splitlines() if ";" in line] if path.exists() else []
    pins = {name: version.split("+")[0] for name, version in closure(json.loads(out)).items()}
    lines = [f"{name}=={version}" for name, version in sorted(pins.items(), key=lambda pin: normal(pin[0]))]
    path.write_text(HEAD + "\n".join([*lines, *kept]) + "\n")
    return len(lines)
