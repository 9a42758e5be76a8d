"""`hone doctor`, to which a machine that takes a minute to import torch is well."""

import sys

from hone.cli import main
from hone.planning import doctor, doctor_python, doctor_torch

if __name__ == "__main__":
    doctor_python._IMPORT_SECONDS = doctor_torch.SECONDS = 600.0
    doctor.examine.__defaults__ = (600.0,)
    sys.exit(main(sys.argv[1:]))
