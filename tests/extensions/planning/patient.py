"""`hone doctor`, to which a machine that takes a minute to import torch is well."""

import sys

from hone.cli import main
from hone.extensions.planning import doctor

if __name__ == "__main__":
    doctor.SECONDS = 600.0
    sys.exit(main(sys.argv[1:]))
