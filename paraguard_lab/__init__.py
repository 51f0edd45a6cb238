"""What is beyond the paper, and what makes the record; nothing that notebooks 00 to 05 need."""
