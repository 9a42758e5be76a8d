"""Studies: runs that differ in some settings, over seeds, and what the differences are worth."""
