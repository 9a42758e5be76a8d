#!/usr/bin/env bash
# Install hone's wheel on a rented machine, and check the machine. Run it in a folder with constraints.txt and the wheel:
#
#   bash setup.sh          # another Python: PYTHON=python3.12 bash setup.sh
#
# It makes .venv there, which needs about 8 GB with PyTorch for CUDA. Run again, it does what is missing.
set -euo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: hone needs Python 3.11 or newer; name one: PYTHON=python3.12 bash setup.sh" >&2; exit 2; }
wheel=$({ ls -t -- *.whl 2>/dev/null || true; } | head -n 1) # the newest
[ -n "$wheel" ] || { echo "error: there is no wheel of hone in $PWD: copy dist/*.whl here" >&2; exit 2; }
"$PYTHON" -m venv .venv ||
    { echo "error: this Python makes no environments: apt-get install python3-venv" >&2; exit 2; }
.venv/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt "$wheel"
.venv/bin/hone doctor || true  # it prints what to fix; a warning is no reason to stop here
