"""Studies: the runs, tables and figures of the paper."""
