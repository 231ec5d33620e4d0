#!/bin/sh
# The flow tests on another Prefect than the pinned one, in an environment of its own.
#
#   tests/flows/on_prefect.sh 3.7.7 [FOLDER] [PYTEST WORD…]
#
# FOLDER (.state/prefect-VERSION if not said) is made on the first run and used again. The versions of what this
# project names itself are those of constraints.txt; what Prefect brings along is left to pip, for older ones want
# older companions. Prefect up to 3.7.7 does not start with a fastapi of 0.137 or later, and its scheduler fails on
# SQLite with SQLAlchemy 2.1; it says neither to pip.
set -eu
version=${1:?which Prefect, e.g. 3.7.7}
cd "$(dirname "$0")/../.."
folder=${2:-.state/prefect-$version}
[ $# -lt 2 ] || shift
shift

case $version in
    3.[0-6].* | 3.7.[0-7]) companions="fastapi<0.137 sqlalchemy<2.1" ;;
    *) companions="" ;;
esac

if [ ! -e "$folder/.ready" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" - <<'PICK' >"$folder/constraints.txt"
import re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
def canonical(line):
    return re.split(r"[<>=!\[ ]", line)[0].lower().replace("_", "-")
named = {canonical(line) for line in wanted} - {"prefect"}
print("".join(line for line in open("constraints.txt") if canonical(line) in named), end="")
PICK
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c "$folder/constraints.txt" \
        "prefect==$version" $companions -e ".[ray]" hypothesis pillow psutil pytest
    touch "$folder/.ready"
fi
"$folder/bin/python" -c 'import prefect; print("prefect", prefect.__version__)'
exec "$folder/bin/python" -m pytest tests/flows "$@"
