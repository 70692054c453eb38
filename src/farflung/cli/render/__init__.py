"""What commands show on a terminal: tables, reports, progress."""
