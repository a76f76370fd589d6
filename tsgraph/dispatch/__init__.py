"""Where a step goes, decided purely: sizes (R1), and a table from live rows to a decision."""
