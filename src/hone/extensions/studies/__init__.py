"""Studies: runs that differ in some settings, over seeds, and a test of each difference."""
