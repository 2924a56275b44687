"""Measurements: each module prints a table and appends a record to results/."""
