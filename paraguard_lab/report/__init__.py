"""Numbers in prose, comparisons with the record, sheets and the data card."""
