"""Studies: runs that differ in settings and seeds, with a test of each difference."""
